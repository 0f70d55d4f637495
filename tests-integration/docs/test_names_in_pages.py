"""What pages say of `accelerator.NAME` and `accel launch --OPTION` is there."""

import re

from accel import Accelerator
from accel_launch.cli.commands.launch import COMMAND
from repository import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
METHOD = re.compile(r"(?<![\w.])accelerator\.([a-z]\w*)(?![\w/-])")
#: a launch with its options, up to the script
LAUNCH = re.compile(r"(?<![\w.])accel launch((?: --?[\w-]+(?:[ =](?!-)[\w,./=-]+(?<!\.py))?)+)")
NO_NAMES = {"optimizer", "py", "scheduler", "md"}  # of modules and files
#: a misspelt option, shown with the answer that it gets
MISSPELT = "--num_proceses"
KNOWN = {flag for option in COMMAND.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}


def unknown_methods(text: str) -> set[str]:
    """Names that an Accelerator does not have."""
    return {name for name in METHOD.findall(text) if not hasattr(Accelerator, name)} - NO_NAMES


def unknown_options(text: str) -> set[str]:
    """Options that `accel launch` does not take."""
    given = {option for launch in LAUNCH.findall(text) for option in re.findall(r" (--[\w-]+)", launch)}
    return {option for option in given if f"--{option[2:].replace('-', '_')}" not in KNOWN} - {MISSPELT}


def test_the_methods_of_the_pages_are_there() -> None:
    unknown = {str(page.relative_to(ROOT)): unknown_methods(page.read_text()) for page in PAGES}
    assert not {page: names for page, names in unknown.items() if names}


def test_the_options_of_the_pages_are_there() -> None:
    unknown = {str(page.relative_to(ROOT)): unknown_options(page.read_text()) for page in PAGES}
    assert not {page: names for page, names in unknown.items() if names}


def test_a_name_that_is_gone_is_found() -> None:
    assert unknown_methods("call `accelerator.gone()`, not accelerator.gather") == {"gone"}
    assert unknown_options("`accel launch --cpu -n 2 --gone 3 train.py --lr 1`") == {"--gone"}
