"""A2, T1, T27: a killed job goes on from its checkpoint, and ends with the bits of the unbroken one."""

import json
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import restart
from accel_testing import MakePool, RankFailure
from jobs import start
from restart import Plan, Result
from suite.soak import Cases

SCRIPT = Path(restart.__file__)
STEPS = restart.EPOCHS * -(-restart.SAMPLES // restart.BATCH)


def ended(world: MakePool, size: int, plan: Plan) -> list[Result]:
    Path(plan.folder).mkdir(exist_ok=True)
    return world(size, join=size > 1).run(restart.train, plan)


def lives(world: MakePool, size: int, plan: Plan, chance: random.Random) -> list[Result]:
    """What comes of a job that is killed at a random rank and step, and of the same command after it."""
    killed = chance.randrange(size), chance.randint(1, STEPS), chance.random() < 0.5
    with pytest.raises(RankFailure, match="SIGKILL"):
        ended(world, size, replace(plan, killed=killed))
    found = ended(world, size, plan)
    saved = killed[1] if killed[2] else killed[1] - 1
    # a checkpoint that was written behind may be lost with its process, and no more
    possible = {saved - saved % plan.every, max(0, (saved // plan.every - 1) * plan.every)}
    assert {one.began for one in found} <= possible, killed
    return found


@pytest.mark.soak
@pytest.mark.grid(1)
@pytest.mark.parametrize("precision", ["no", "fp16"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_killed_job_ends_with_the_bits_of_the_unbroken_one(
    size: int, precision: str, world: MakePool, tmp_path: Path, cases: Cases
) -> None:
    """A2, fault test 24: a kill for each process in the suite, 40 in a soak, of any rank at any step.

    Also just after a save that goes on behind.
    """
    whole = ended(world, size, Plan(str(tmp_path / "whole"), precision))
    assert all((one.began, one.steps) == (0, STEPS) for one in whole)
    for number in cases(size, 10):
        chance = random.Random(f"{size} {precision} {number}")
        plan = Plan(str(tmp_path / str(number)), precision)
        found = lives(world, size, plan, chance)
        assert [one.digest for one in found] == [one.digest for one in whole]
        for one, unbroken in zip(found, whole, strict=True):
            assert one.losses == unbroken.losses[one.began :]


def test_a_job_that_is_killed_again_and_again_ends_with_the_same_bits(world: MakePool, tmp_path: Path) -> None:
    """Fault test 24: three kills, with other numbers of loader workers each time."""
    whole = ended(world, 2, Plan(str(tmp_path / "whole"), workers=0))
    plan = Plan(str(tmp_path / "killed"))
    for killed, workers in (((0, 7, True), 2), ((1, 11, False), 0), ((0, 20, False), 1)):
        with pytest.raises(RankFailure, match="SIGKILL"):
            ended(world, 2, replace(plan, killed=killed, workers=workers))
    found = ended(world, 2, plan)
    assert min(one.began for one in found) > 0
    assert [one.digest for one in found] == [one.digest for one in whole]


def test_a_job_that_the_launcher_starts_again_ends_with_the_same_bits(
    world: MakePool, forking_python: str, tmp_path: Path
) -> None:
    """A2: as a user does it."""
    whole = ended(world, 2, Plan(str(tmp_path / "whole"), "fp16"))
    plan = Plan(str(tmp_path / "killed"), "fp16")
    with pytest.raises(RankFailure, match="SIGKILL"):
        ended(world, 2, replace(plan, killed=(1, 10, True)))
    done = start(SCRIPT, json.dumps(asdict(plan)), python=forking_python).end()
    assert done.code == 0, done.err
    for rank, one in enumerate(whole):
        assert json.loads((Path(plan.folder) / f"done-{rank}").read_text()) == [one.steps, one.digest]


def test_the_loss_of_each_resumed_step_is_that_of_the_unbroken_run(world: MakePool, tmp_path: Path) -> None:
    """T27: dropout of 50 steps and more after a load is that of the run that was not broken."""
    plan = Plan(str(tmp_path / "killed"), every=4, epochs=5, workers=0)
    whole = ended(world, 2, replace(plan, folder=str(tmp_path / "whole")))
    with pytest.raises(RankFailure, match="SIGKILL"):
        ended(world, 2, replace(plan, killed=(1, 9, False)))
    for one, unbroken in zip(ended(world, 2, plan), whole, strict=True):
        assert one.steps - one.began >= 50
        assert one.losses == unbroken.losses[one.began :]
        assert one.digest == unbroken.digest
