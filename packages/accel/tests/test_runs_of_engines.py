"""Runs on what an engine leaves in a process: an open group, and variables that it sets late or changes."""

import os
import time
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from accel import Accelerator
from accel_state import PartialState, RunConflict, current, release
from accel_testing import MakePool
from jobs import free_port
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

#: size, rank and result of a training
Trained = tuple[int, int, float]
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def trained() -> Trained:
    """Size and rank, and what the model makes of the samples after an epoch of batches that 2 and 3 ranks divide."""
    accelerator = Accelerator(cpu=True, split_batches=True)
    torch.manual_seed(0)
    model = nn.Linear(2, 1).double()
    samples = torch.arange(72.0, dtype=torch.float64).reshape(36, 2) / 72
    loader = DataLoader(TensorDataset(samples), batch_size=6, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for (batch,) in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    (mean,) = accelerator.gather(model(samples).square().mean().reshape(1)).unique().tolist()
    return accelerator.num_processes, accelerator.process_index, mean


def give_place(rank: int, size: int, port: int) -> None:
    """Sets the variables of a worker, as an engine does."""
    values = (rank, size, rank, size, "127.0.0.1", port)
    os.environ.update({name: str(value) for name, value in zip(VARIABLES, values, strict=True)})


def open_as_engine(rank: int, size: int, port: int, **options: Any) -> None:
    dist.init_process_group(init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, **options)


def in_open_group(port: int, options: dict[str, Any], named: bool) -> tuple[Trained, float, bool]:
    rank = int(os.environ["RANK"])
    for name in VARIABLES[4 if named else 0 :]:
        os.environ.pop(name, None)
    open_as_engine(rank, 2, port, **options)
    dist.new_group([rank], use_local_synchronization=True)
    found = trained()
    limit = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).options._timeout
    release()
    still_open = dist.is_initialized()
    dist.destroy_process_group()
    return found, limit.total_seconds(), still_open


@pytest.fixture(scope="module")
def result() -> Any:
    """The result of one process, to the rounding of sums."""
    try:
        return pytest.approx(trained()[2], abs=1e-12)
    finally:
        release()


@pytest.mark.parametrize("named", [True, False], ids=["with RANK", "without RANK"])
@pytest.mark.parametrize(
    "options",
    [{"backend": "gloo", "timeout": timedelta(seconds=77)}, {"backend": "cpu:gloo"}, {}],
    ids=["a limit", "the CPU alone", "no backend"],
)
def test_a_group_that_the_engine_has_opened_is_used_and_stays(
    options: dict[str, Any], named: bool, result: Any, world: MakePool
) -> None:
    found = world(2, join=False).run(in_open_group, free_port(), options, named)
    limit = options.get("timeout", timedelta(minutes=30)).total_seconds()
    assert found == [((2, rank, result), limit, True) for rank in (0, 1)]


def late_variables(port: int) -> Trained:
    """The engine sets them when accel and torch are long imported."""
    rank = 1 - int(os.environ["RANK"])
    for name in VARIABLES:
        os.environ.pop(name, None)
    give_place(rank, 2, port)
    return trained()


def test_variables_that_come_after_the_imports_count(result: Any, world: MakePool) -> None:
    assert world(2, join=False).run(late_variables, free_port()) == [(2, 1, result), (2, 0, result)]


def fail_in_an_exchange(accelerator: Accelerator) -> None:
    """Rank 1 fails, and rank 0 hears of it when the engine closes the group there."""
    if accelerator.process_index == 1:
        raise ValueError("bad shard")
    accelerator.gather(torch.ones(1))


def engine_calls_twice(ports: list[int], opens: bool, fails: bool) -> list[Trained]:
    """Processes 0 and 1 run first; the second run has process 2 too, a new one, and other ranks."""
    process, found = int(os.environ["RANK"]), list[Trained]()
    for attempt, size in enumerate((2, 3)):
        if process >= size:
            continue
        rank = (process + attempt) % size
        give_place(rank, size, ports[attempt])
        if opens:
            open_as_engine(rank, size, ports[attempt], backend="gloo")
        found.append(trained())
        numbers = current().transport.recorder.number  # type: ignore[attr-defined] # of a run with others
        if fails and attempt == 0:
            with pytest.raises((ValueError, RuntimeError)):
                fail_in_an_exchange(Accelerator(cpu=True))
        dist.destroy_process_group()
    release()
    return [*found, (numbers, 0, 0.0)]


@pytest.mark.parametrize("opens", [True, False], ids=["the engine's group", "accel's group"])
@pytest.mark.parametrize("fails", [True, False], ids=["after an error", "after its end"])
def test_a_process_may_run_again_beside_new_ones_in_another_group(
    opens: bool, fails: bool, result: Any, world: MakePool
) -> None:
    """Neither rank, nor counts of runs and exchanges are those of the first run."""
    *pair, new = world(3, join=False).run(engine_calls_twice, [free_port(), free_port()], opens, fails)
    exchanges = new[-1]
    assert new[:-1] == [(3, 0, result)]
    assert pair == [[(2, rank, result), (3, rank + 1, result), exchanges] for rank in (0, 1)]


def given_another_place(old: int, new: int, ranks: tuple[int, int], size: int) -> str:
    """A second Accelerator, when nobody has ended the first run; then a third, when that has ended."""
    rank = int(os.environ["RANK"])
    give_place(rank if size > 1 else 0, size, old)
    trained()
    give_place(ranks[rank], 2, new)
    with pytest.raises(RunConflict) as refused:
        trained()
    release()
    assert trained()[:2] == (2, ranks[rank])
    release()
    return str(refused.value).replace(str(new), "NEW").replace(str(old), "OLD")


@pytest.mark.parametrize(
    ("size", "ranks", "told"),
    [
        (2, (1, 0), "rank {0} of 2 at 127.0.0.1:OLD, and torchrun now says rank {1} of 2 at 127.0.0.1:NEW"),
        (2, (0, 1), "rank {0} of 2 at 127.0.0.1:OLD, and torchrun now says rank {1} of 2 at 127.0.0.1:NEW"),
        (1, (0, 1), "rank 0 of 1, and torchrun now says rank {1} of 2 at 127.0.0.1:NEW"),
    ],
    ids=["other ranks", "another address", "alone before"],
)
def test_another_place_is_refused_until_the_first_run_has_ended(
    size: int, ranks: tuple[int, int], told: str, world: MakePool
) -> None:
    found = world(2, join=False).run(given_another_place, free_port(), free_port(), ranks, size)
    end = "; end that run first, by accel_state.release() or torch.distributed.destroy_process_group()"
    assert found == [f"this process already runs as {told.format(rank, ranks[rank])}{end}" for rank in (0, 1)]


def other_variables(name: str, value: str) -> bool:
    """A library writes what it needs, as for a server beside the training."""
    first = trained()
    os.environ[name] = value
    again = trained()
    release()
    return first == again


@pytest.mark.parametrize(("name", "value"), [("LOCAL_RANK", "0"), ("MASTER_PORT", "12345")])
def test_variables_that_say_nothing_of_the_run_are_left_alone(name: str, value: str, world: MakePool) -> None:
    assert world(2).run(other_variables, name, value) == [True, True]


def plain_reads(port: int) -> list[Any]:
    """What one rank finds that only reads, while variables are changed, and when the group is another, or closed."""
    accelerator = Accelerator(cpu=True)
    found: list[Any] = []
    rank = accelerator.process_index
    with patch.dict(os.environ, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}):
        found.append(accelerator.state.process_index == rank)
    group = dist.new_group([0, 1])
    own = dist.distributed_c10d._get_default_group()
    dist.distributed_c10d._update_default_pg(group)
    time.sleep(0.6)  # two looks of the watchdog
    dist.distributed_c10d._update_default_pg(own)
    found.append(accelerator.gather(torch.tensor([rank])).tolist())
    dist.destroy_process_group()
    if rank == 0:  # nobody would come to a new group
        found.append(PartialState().num_processes)
    release()
    return found


def test_plain_reads_start_nothing_and_refuse_nothing(world: MakePool) -> None:
    """A thread that delivers logs asks for the main process, on one rank, at any time."""
    assert world(2).run(plain_reads, free_port()) == [[True, [0, 1], 2], [True, [0, 1]]]
