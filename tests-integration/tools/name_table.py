"""The table of the page "Coming from Accelerate", made from the table of names; run it to write the page anew."""

from pathlib import Path

from accel_names.lazy_names import table

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "coming-from-accelerate.md"
BEGIN, END = "<!-- made by tests-integration/tools/name_table.py -->\n", "<!-- end of what is made -->\n"


def made() -> str:
    """The lines of both tables."""
    known = table()
    lines = ["| Name | How it differs |", "| --- | --- |"]
    lines += [f"| `{name}` | {words} |" for name, words in sorted(known.different.items())]
    grouped: dict[str, list[str]] = {}
    for name, words in known.instead.items():
        grouped.setdefault(words, []).append(f"`{name}`")
    lines += ["", "| Not here | What to do in its place |", "| --- | --- |"]
    lines += [f"| {', '.join(names)} | {words} |" for words, names in grouped.items()]
    return "\n".join(lines) + "\n"


def shown() -> str:
    """The lines of both tables, as the page has them."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + made() + END + rest.partition(END)[2], encoding="utf-8")
