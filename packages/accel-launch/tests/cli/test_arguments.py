"""What belongs to the launcher, and what to the script."""

import click
import pytest
from accel_launch.cli.accelerate_flags import ACCELERATE_OPTIONS
from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.options import OPTIONS
from accel_launch.job.job import read_job
from accel_state.errors import CannotRun
from hypothesis import given
from hypothesis import strategies as st
from launch_lines import read

FLAGS = {flag for option in (*OPTIONS, *ACCELERATE_OPTIONS) for flag in (*option.opts, *option.secondary_opts)}
WORDS = st.one_of(st.text(max_size=8), st.sampled_from(["--", "-h", "--help", "-n2", "--cpu=1", *sorted(FLAGS)]))
OWN = [[], ["-n", "3"], ["--cpu"], ["--num-processes=2", "--fp16"], ["--gpu_ids", "0,1", "--"], ["-m"]]


def flags(options: ResolvedOptions) -> dict[str, object]:
    return {
        name: getattr(options.settings, name) for name in options.settings.origins if options.settings.is_flag(name)
    }


@given(own=st.sampled_from(OWN), arguments=st.lists(WORDS, max_size=6))
def test_everything_after_the_script_is_the_scripts_untouched(own: list[str], arguments: list[str]) -> None:
    """S106."""
    line = read([*own, "train.py", *arguments])
    assert line.script == "train.py"
    assert list(line.arguments) == arguments
    assert flags(line) == flags(read([*own, "train.py"]))
    assert not line.problems


@pytest.mark.parametrize("tokens", [["-n", "2"], ["-n2"], ["-n=2"], ["--num_processes=2"], ["--num-processes", "2"]])
def test_a_value_may_be_attached_or_follow(tokens: list[str]) -> None:
    line = read([*tokens, "s.py"])
    assert flags(line) == {"num_processes": 2}
    assert line.script == "s.py"


def test_a_double_dash_ends_the_options() -> None:
    line = read(["--cpu", "--", "-odd-name.py", "--", "x"])
    assert (line.script, line.arguments) == ("-odd-name.py", ("--", "x"))


def test_the_last_of_a_repeated_option_counts() -> None:
    assert flags(read(["-n", "2", "-n", "4", "s.py"])) == {"num_processes": 4}


def test_submit_options_of_a_repeated_flag_are_all_kept_and_the_later_wins() -> None:
    tokens = ["--submit_options", "a=1,b=2", "--submit-options=c=3,a=4", "s.py"]
    assert flags(read(tokens)) == {"submit_options": {"a": "4", "b": "2", "c": "3"}}
    # Within one flag nothing is later.
    (problem,) = read(["--submit_options", "a=1,a=2"]).problems
    assert problem.startswith("--submit_options: expected different names with values")


def test_flags_for_a_queue_are_refused_if_the_job_goes_to_none() -> None:
    line = read(["--submit_options", "a=1", "--submit_file", "f", __file__])
    needs = "needs --submit SCHEDULER: without it the job would run here"
    with pytest.raises(CannotRun) as caught:
        read_job(line)
    assert caught.value.reasons == (f"--submit_options {needs}", f"--submit_file {needs}")


def test_fp16_is_mixed_precision_fp16() -> None:
    """Decision 8."""
    assert flags(read(["--fp16", "s.py"])) == {"mixed_precision": "fp16"}
    assert read(["--fp16", "--mixed_precision", "fp16", "s.py"]).problems == ()


@pytest.mark.parametrize("tokens", [["--fp16", "--mixed_precision", "bf16"], ["--mixed-precision=bf16", "--fp16"]])
def test_fp16_and_another_precision_contradict_each_other(tokens: list[str]) -> None:
    (problem,) = read([*tokens, "s.py"]).problems
    assert "--mixed_precision fp16, found also --mixed_precision bf16" in problem


def test_all_wrong_values_are_reported_at_once() -> None:
    line = read(["-n", "0", "--gpu_ids", "a", "--mixed_precision", "fp4", "s.py"])
    assert [problem.split()[0] for problem in line.problems] == ["--num_processes:", "--gpu_ids:", "--mixed_precision:"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["--num-proceses", "2", "s.py"], "did you mean --num_processes?"),
        (["--cpu=1", "s.py"], "'--cpu' does not take a value"),
        (["-n"], "'-n' requires an argument"),
    ],
)
def test_what_cannot_be_told_apart_from_the_script_ends_the_reading(tokens: list[str], words: str) -> None:
    with pytest.raises((CannotRun, click.UsageError), match=words):
        read(tokens)


@pytest.mark.parametrize("tokens", [["-n", "--cpu"], ["-n", "010"], ["--num_processes="], ["--log_dir", ""]])
def test_a_value_that_is_none_is_a_problem(tokens: list[str]) -> None:
    """Also a number with a leading zero, which is an octal number for some."""
    (problem,) = read([*tokens, "s.py"]).problems
    assert problem.startswith("--num_processes: expected a whole number") or problem.endswith(": it has no value"), (
        problem
    )


def test_a_switch_of_the_file_can_be_taken_back() -> None:
    assert flags(read(["--no-cpu", "s.py"])) == {"cpu": False}
