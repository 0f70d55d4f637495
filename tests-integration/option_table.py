"""The table of launch options in docs/guides/launching.md, made from their declarations; run it to write it anew."""

import re
from pathlib import Path

import click
from accel_launch.cli.options import OPTIONS
from accel_launch.cli.program import ACCEL

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "launching.md"
PLACE = re.compile(r"(?<=<!-- options -->\n).*?(?=<!-- end of options -->)", re.DOTALL)


def table() -> str:
    """One row for each option."""
    rows = ["| Option | In a file | Variable | What it does |", "| --- | --- | --- | --- |"]
    for option in OPTIONS:
        value = "" if option.is_flag else f" {option.make_metavar(click.Context(ACCEL))}"
        flags = ", ".join(f"`{flag}{value}`".replace("|", "\\|") for flag in option.opts)
        key = f"`{option.key}`" if option.key else ""
        variable = f"`{option.envvar}`" if option.envvar else ""
        rows.append(f"| {flags} | {key} | {variable} | {option.about} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(PLACE.sub(lambda found: table(), PAGE.read_text()))
