"""What belongs to the launcher, and what to the script."""

import pytest
from accel_launch.arguments import flags_for_a_queue, split
from accel_launch.options import BY_FLAG, OPTIONS
from hypothesis import given
from hypothesis import strategies as st

WORDS = st.one_of(st.text(max_size=8), st.sampled_from(["--", "-h", "--help", "-n2", "--cpu=1", *BY_FLAG]))
OWN = [[], ["-n", "3"], ["--cpu"], ["--num-processes=2", "--fp16"], ["--gpu_ids", "0,1", "--"], ["-m"]]


@given(own=st.sampled_from(OWN), arguments=st.lists(WORDS, max_size=6))
def test_s106_everything_after_the_script_is_the_scripts_untouched(own: list[str], arguments: list[str]) -> None:
    line = split([*own, "train.py", *arguments])
    assert line.script == "train.py"
    assert list(line.arguments) == arguments
    assert line.flags == split([*own, "train.py"]).flags
    assert not line.problems
    assert not line.help


@pytest.mark.parametrize("flag", [flag for option in OPTIONS for flag in option.flags])
def test_every_long_flag_has_both_spellings(flag: str) -> None:
    assert flag in BY_FLAG
    if flag.startswith("--"):
        assert BY_FLAG["--" + flag[2:].replace("_", "-")] == BY_FLAG[flag]


@pytest.mark.parametrize("tokens", [["-n", "2"], ["-n2"], ["-n=2"], ["--num_processes=2"], ["--num-processes", "2"]])
def test_a_value_may_be_attached_or_follow(tokens: list[str]) -> None:
    line = split([*tokens, "s.py"])
    assert line.flags == {"num_processes": 2}
    assert line.script == "s.py"


def test_a_double_dash_ends_the_options() -> None:
    line = split(["--cpu", "--", "-odd-name.py", "--", "x"])
    assert (line.script, line.arguments) == ("-odd-name.py", ("--", "x"))


def test_the_last_of_a_repeated_option_counts() -> None:
    assert split(["-n", "2", "-n", "4", "s.py"]).flags == {"num_processes": 4}


def test_submit_options_of_a_repeated_flag_are_all_kept_and_the_later_wins() -> None:
    tokens = ["--submit_options", "a=1,b=2", "--submit-options=c=3,a=4", "s.py"]
    assert split(tokens).flags == {"submit_options": "b=2,c=3,a=4"}
    # Within one flag nothing is later: the queue tells of both.
    assert split(["--submit_options", "a=1,a=2"]).flags == {"submit_options": "a=1,a=2"}


def test_flags_for_a_queue_are_refused_where_the_job_goes_to_none() -> None:
    line = split(["--submit_options", "a=1", "--submit_file", "f", "s.py"])
    needs = "needs --submit {slurm,sagemaker,kubernetes}: without it the job would run here"
    assert flags_for_a_queue(line, None) == [f"--submit_options {needs}", f"--submit_file {needs}"]
    assert flags_for_a_queue(line, "slurm") == []
    assert flags_for_a_queue(split(["--cpu", "s.py"]), None) == []


def test_fp16_is_mixed_precision_fp16() -> None:
    """Decision 8."""
    assert split(["--fp16", "s.py"]).flags == {"mixed_precision": "fp16"}
    assert split(["--fp16", "--mixed_precision", "fp16", "s.py"]).problems == ()


@pytest.mark.parametrize("tokens", [["--fp16", "--mixed_precision", "bf16"], ["--mixed-precision=bf16", "--fp16"]])
def test_fp16_and_another_precision_contradict_each_other(tokens: list[str]) -> None:
    (problem,) = split([*tokens, "s.py"]).problems
    assert "--mixed_precision fp16, found also --mixed_precision bf16" in problem


def test_all_wrong_values_are_reported_at_once() -> None:
    line = split(["-n", "0", "--gpu_ids", "a", "--mixed_precision", "fp4", "--cpu=1", "s.py"])
    assert [problem.split()[0] for problem in line.problems] == ["-n", "--gpu_ids", "--mixed_precision", "--cpu"]


def test_an_unknown_option_names_the_nearest() -> None:
    (problem,) = split(["--num-proceses", "2", "s.py"]).problems
    assert "did you mean --num-processes?" in problem


@pytest.mark.parametrize("tokens", [["-n"], ["-n", "--cpu", "s.py"]])
def test_a_missing_value_is_seen(tokens: list[str]) -> None:
    assert "-n needs a value (a whole number of at least 1)" in split(tokens).problems[0]


def test_a_switch_of_the_file_can_be_taken_back() -> None:
    assert split(["--no-cpu", "s.py"]).flags == {"cpu": False}


def test_help_before_the_script_is_the_launchers() -> None:
    assert split(["-n", "2", "--help"]).help
