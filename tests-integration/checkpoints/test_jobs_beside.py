"""T28: jobs that save and resume beside one another on one disk do each other no harm."""

from pathlib import Path

import beside
import pytest
from accel_checkpoint import is_whole
from accel_testing import MakePool
from suite.soak import Cases

LONG_S = 900
pytestmark = [pytest.mark.soak, pytest.mark.timeout(LONG_S)]


@pytest.mark.parametrize("named", [True, False], ids=["by name", "with numbers"])
@pytest.mark.parametrize("own", [True, False], ids=["four in one parent folder", "two in one folder"])
def test_saves_of_jobs_beside_one_another_succeed(
    own: bool, named: bool, world: MakePool, tmp_path: Path, cases: Cases
) -> None:
    """Each load after a save finds a whole state, too."""
    jobs, saves, limit = 4 if own else 2, len(cases(40, 2000)), None if named else 1
    run = world(jobs, join=False).run
    problems = run(beside.save_beside, tmp_path, saves // jobs, own, named, limit, timeout_s=LONG_S)
    assert problems == [[]] * jobs


@pytest.mark.soak(only=True)
@pytest.mark.parametrize("named", [True, False], ids=["by name", "with numbers"])
def test_sharded_saves_of_two_jobs_in_one_folder_succeed(named: bool, world: MakePool, tmp_path: Path) -> None:
    """Two ranks each, which write their parts into one hidden folder."""
    run = world(4, join=False).run
    problems = run(beside.save_beside, tmp_path, 200, False, named, None if named else 1, 2, timeout_s=LONG_S)
    assert problems == [[]] * 4


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resume_beside_a_job_that_keeps_one_checkpoint_loads_one(
    ranks: int, world: MakePool, tmp_path: Path, cases: Cases
) -> None:
    resumes = len(cases(40, 2000))
    problems = world(ranks + 1, join=False).run(beside.resume_beside, tmp_path, resumes, ranks, timeout_s=LONG_S)
    assert problems == [[]] * (ranks + 1)
    assert [path for path in (tmp_path / "checkpoints").iterdir() if not is_whole(path)] == []


def test_a_job_that_is_killed_beside_another_spoils_nothing(world: MakePool, tmp_path: Path, cases: Cases) -> None:
    lives = len(cases(5, 200))
    assert world(2, join=False).run(beside.die_beside, tmp_path, lives, timeout_s=LONG_S) == [[], []]
    (folder,) = (path for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert is_whole(folder)
    world(1, join=False).run(beside.save_beside, tmp_path, 1, False, True, None)
    assert list(tmp_path.iterdir()) == [folder]
