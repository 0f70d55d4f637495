"""A script of Accelerate's that goes on by the number in the name of its checkpoint trains on all that is left."""

import sys
from pathlib import Path

import idiom
import pytest
from jobs import Ended, start
from suite.soak import in_soak

SCRIPT = Path(idiom.__file__)
Trained = list[tuple[int, ...]]


def run(python: str, folder: Path, kind: str, size: int, *options: str) -> tuple[Trained, str]:
    """The lines of what was trained, and all that was printed."""
    ended: Ended = start(SCRIPT, folder, kind, *options, size=size, python=python).end()
    assert ended.code == 0, ended.err
    lines = [line.split()[1:] for line in ended.out.splitlines() if line.startswith("trained ")]
    return [tuple(map(int, line)) for line in lines], ended.out + ended.err


@pytest.mark.grid(1)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_checkpoint_of_the_last_batch_goes_on_with_the_next_epoch(
    tmp_path: Path, kind: str, size: int, forking_python: str
) -> None:
    """Today 3 of 6 are trained: epoch 1 of the script is the rest of epoch 0, which is empty."""
    whole, _ = run(forking_python, tmp_path, kind, size)
    assert [step for step, *_ in whole] == [1, 2, 3, 4, 5, 6]
    rest, said = run(forking_python, tmp_path, kind, size, "--from", "step_3")
    if rest != whole[3:]:  # it may also be left to the script, if the main process is told
        assert rest == []
        assert said.count("no batch") == 1 or said.count("empty") == 1


@pytest.mark.parametrize("kind", ["map", *in_soak("stream")])
def test_a_checkpoint_inside_an_epoch_is_told_or_gone_on_with(tmp_path: Path, kind: str, forking_python: str) -> None:
    """The state has left out the first two batches, and the script asks for that again."""
    whole, _ = run(forking_python, tmp_path, kind, 1)
    before, _ = run(forking_python, tmp_path / "again", kind, 1, "--stop", "2")
    assert before == whole[:2]
    rest, said = run(forking_python, tmp_path / "again", kind, 1, "--from", "step_2")
    if rest != whole[2:]:
        assert "skip_first_batches" in said


def test_a_program_for_accelerate_may_skip_by_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fresh interpreters: one that is forked may have imported Accelerate already."""
    monkeypatch.setenv("ACCEL_AS_ACCELERATE", "1")
    before, _ = run(sys.executable, tmp_path, "map", 2, "--stop", "2")
    rest, _ = run(sys.executable, tmp_path, "map", 2, "--from", "step_2", "--continue")
    assert [step for step, *_ in before + rest] == [1, 2, 3, 4, 5, 6]
    assert sorted(sample for _, _, *samples in before + rest[:1] for sample in samples) == [*range(12)]
