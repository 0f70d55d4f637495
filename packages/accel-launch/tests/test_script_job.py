"""What commands of other packages get of a command line that has their own options among those of the launcher."""

import click
import pytest
from accel_launch.cli.launch_command import LaunchCommand, resolve_options, resolved
from accel_launch.cli.launch_option import LaunchOption, Sources
from accel_launch.cli.option_types import COUNT, FILE
from accel_launch.script_job import read_script_job
from accel_state.errors import CannotRun

OWN = (
    LaunchOption("--steps", type=COUNT, key=None, about="How many."),
    LaunchOption("--report", type=FILE, key=None, about="Where to."),
)


@pytest.mark.parametrize(
    ("tokens", "own", "script"),
    [
        (["--steps", "3", "x.py"], (3, None), ["x.py"]),
        (["-n", "2", "--steps=3", "x.py", "--steps", "4"], (3, None), ["x.py", "--steps", "4"]),
        (["--cpu", "--report", "r", "--", "x.py"], (None, "r"), ["x.py"]),
        (["--mixed_precision", "no", "x.py", "-h"], (None, None), ["x.py", "-h"]),
    ],
)
def test_own_options_are_taken_from_before_the_script(
    tokens: list[str], own: tuple[int | None, str | None], script: list[str]
) -> None:
    command = LaunchCommand("try", lambda **_: 0, own=OWN, words="SCRIPT")
    context = command.make_context("try", tokens, obj=Sources({}))
    options = resolved(context)
    assert (context.params["steps"], context.params["report"]) == own
    assert [options.script, *options.arguments] == script
    assert options.problems == ()


def test_an_own_option_without_its_value_is_told() -> None:
    command = LaunchCommand("try", lambda **_: 0, own=OWN)
    with pytest.raises(click.UsageError, match="'--steps' requires an argument"):
        command.make_context("try", ["--steps"], obj=Sources({}))


def test_all_problems_are_told_at_once_in_the_name_of_the_command() -> None:
    options = resolve_options(["--grace_period", "none", "missing"], {})
    with pytest.raises(CannotRun) as refused:
        read_script_job("accel try", options)
    assert refused.value.what == "accel try"
    first, second = refused.value.reasons
    assert first == "--grace_period: expected a whole number of at least 1, found 'none'"
    assert "'missing'" in second


def test_several_machines_are_refused() -> None:
    options = resolve_options(["--num_machines=2", "--machine_rank=0", "--main_process_ip=h", __file__], {})
    with pytest.raises(CannotRun, match="accel try runs on one machine"):
        read_script_job("accel try", options)
