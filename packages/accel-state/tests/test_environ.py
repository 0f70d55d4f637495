import re

import pytest
from accel_state import Rendezvous, Topology, TopologyError, detect
from accel_state.environ import EnvironSettings, flag, integers, settings, worker_environ
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

QUICK = hypothesis_settings(derandomize=True, deadline=None)


@pytest.mark.parametrize("word", ["1", "true", "True", "YES", " on ", "y", "T"])
def test_a_true_word_is_true(word: str) -> None:
    assert flag({"X": word}, "X") is True


@pytest.mark.parametrize("word", ["", "0", "false", "False", "NO", "off", "n", "f"])
def test_a_false_word_is_false(word: str) -> None:
    assert flag({"X": word}, "X") is False
    assert flag({}, "X") is False


def test_a_word_that_is_neither_is_refused_with_the_words_there_are() -> None:
    with pytest.raises(ValueError, match="X='maybe': expected one of 1, true, yes, on, y, t, 0, false, no, off, n, f"):
        flag({"X": "maybe"}, "X")


def test_missing_and_malformed_numbers_are_reported_together() -> None:
    with pytest.raises(TopologyError) as refused:
        integers({"A": "1", "B": "two", "D": "3.5"}, ("A", "B", "C", "D"), "the launcher")
    assert str(refused.value) == (
        "the environment is half set by the launcher: A='1', B='two', C is missing, D='3.5'."
        " Set each of them to a whole number, or unset all of them to run as a single process"
    )


@QUICK
@given(st.text(max_size=5) | st.from_regex(r"\s?-?\d{1,6}\s?", fullmatch=True))
def test_any_text_is_either_a_number_or_refused_by_name(text: str) -> None:
    if re.fullmatch(r"-?\d+", text.strip()):
        assert integers({"RANK": text}, ("RANK",), "x") == [int(text.strip())]
        return
    with pytest.raises(
        TopologyError, match=re.escape(f"half set by x: RANK={text!r}. Set each of them to a whole number")
    ):
        integers({"RANK": text}, ("RANK",), "x")


@QUICK
@given(st.integers(-(10**9), 10**9))
def test_every_whole_number_is_read(number: int) -> None:
    assert integers({"RANK": str(number)}, ("RANK",), "x") == [number]


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    size = draw(st.integers(2, 64))
    local_size = draw(st.integers(1, size))
    return Topology(
        rank=draw(st.integers(0, size - 1)),
        world_size=size,
        local_rank=draw(st.integers(0, local_size - 1)),
        local_world_size=local_size,
        node_rank=draw(st.integers(0, 9)),
        rendezvous=Rendezvous(
            draw(st.sampled_from(["127.0.0.1", "node-1", "::1"])),
            draw(st.integers(1, 65535)),
            draw(st.none() | st.integers(3, 100)),
        ),
        launcher="accel launch",
    )


@QUICK
@given(topologies())
def test_a_worker_reads_back_what_the_launcher_wrote(topology: Topology) -> None:
    """Feature row S4: a worker of `accel launch`."""
    assert detect(worker_environ(topology)) == topology


def test_silence_settles_nothing() -> None:
    assert settings({}) == EnvironSettings(cpu=False, mixed_precision=None, accumulation_steps=None)
    assert settings({"ACCEL_MIXED_PRECISION": ""}).mixed_precision is None


def test_settings_of_the_launcher_are_read() -> None:
    """Feature row S24."""
    found = settings(
        {"ACCEL_USE_CPU": "true", "ACCEL_MIXED_PRECISION": "fp16", "ACCEL_GRADIENT_ACCUMULATION_STEPS": "4"}
    )
    assert found == EnvironSettings(cpu=True, mixed_precision="fp16", accumulation_steps=4)


@pytest.mark.parametrize("steps", ["0", "-2", "four", "1.5", "", "²"])
def test_accumulation_steps_that_cannot_be_meant_are_refused(steps: str) -> None:
    with pytest.raises(ValueError, match=f"STEPS='{steps}': expected a whole number of at least 1"):
        settings({"ACCEL_GRADIENT_ACCUMULATION_STEPS": steps})


def test_variables_of_accelerate_count_for_its_programs() -> None:
    theirs = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_FSDP": "true", "ACCELERATE_USE_CPU": "True"}
    assert settings(theirs) == settings({})
    found = settings({**theirs, "ACCEL_AS_ACCELERATE": "1", "ACCEL_MIXED_PRECISION": "fp16"})
    assert (found.cpu, found.fsdp, found.mixed_precision) == (True, {}, "fp16")
    with pytest.raises(ValueError, match=r"^ACCELERATE_USE_CPU='maybe': "):
        settings({"ACCELERATE_USE_CPU": "maybe", "ACCEL_AS_ACCELERATE": "1"})
