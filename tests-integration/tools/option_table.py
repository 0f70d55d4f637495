"""The table of launch options in docs/reference/configuration.md, from their declarations; run it to write it."""

import re
from pathlib import Path

import click
from accel_launch.cli.launch_option import LaunchOption
from accel_launch.cli.option_types import FILE, FOLDER, SWITCH, OptionType
from accel_launch.cli.options import OPTIONS
from accel_launch.cli.program import ACCEL

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
PLACE = re.compile(r"(?<=<!-- options -->\n).*?(?=<!-- end of options -->)", re.DOTALL)


def table() -> str:
    """One row for each option."""
    rows = ["| Option | In a file | Variable | Value | Default | What it does |", "| --- " * 6 + "|"]
    for option in OPTIONS:
        value = "" if option.is_flag else f" {option.make_metavar(click.Context(ACCEL))}"
        flags = ", ".join(f"`{flag}{value}`".replace("|", "\\|") for flag in option.opts)
        key = f"`{option.key}`" if option.key else ""
        variable = f"`{option.envvar}`" if option.envvar else ""
        about, _, default = option.about.partition(" Default: ")
        default = default.removesuffix(".") or ("false" if option.type is SWITCH else "not set")
        rows.append(f"| {flags} | {key} | {variable} | {_values(option)} | {default} | {about} |")
    return "\n".join(rows) + "\n"


def _values(option: LaunchOption) -> str:
    if option.type is SWITCH:
        return "true or false"
    if isinstance(option.type, OptionType):
        return option.type.expected
    if isinstance(option.type, click.Choice):
        return f"one of {', '.join(map(str, option.type.choices))}"
    if option.type in (FILE, FOLDER):
        return f"the path of a {'file' if option.type is FILE else 'folder'}"
    return "a name"


if __name__ == "__main__":
    PAGE.write_text(PLACE.sub(lambda found: table(), PAGE.read_text()))
