"""What commands of other packages get of a command line that has their own options among those of the launcher."""

import pytest
from accel_launch.script_job import read_script_job, take_own_options
from accel_state.errors import CannotRun

OWN = ("--steps", "--tolerance")


@pytest.mark.parametrize(
    ("tokens", "own", "rest"),
    [
        (["--steps", "3", "x.py"], {"--steps": "3"}, ["x.py"]),
        (["-n", "2", "--steps=3", "x.py", "--steps", "4"], {"--steps": "3"}, ["-n", "2", "x.py", "--steps", "4"]),
        (["--cpu", "--tolerance", "1e-3", "--", "x.py"], {"--tolerance": "1e-3"}, ["--cpu", "--", "x.py"]),
        (["--mixed_precision", "no", "-h", "x.py", "-h"], {"--help": ""}, ["--mixed_precision", "no", "x.py", "-h"]),
        (["--steps"], {"--steps": ""}, []),
    ],
)
def test_own_options_are_taken_from_before_the_script(tokens: list[str], own: dict[str, str], rest: list[str]) -> None:
    assert take_own_options(tokens, OWN) == (own, rest)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(CannotRun) as refused:
        read_script_job("accel try", ["--no_python", "--num_machines", "2", "missing"], ["--steps: a number"])
    first, second, *rest = refused.value.reasons
    assert (first, second) == ("--steps: a number", "--no_python: accel try runs Python scripts only")
    assert rest
