"""Fault test 37: a loader worker that dies is an error that says so, and the job goes on from its newest state."""

import os
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_testing import MakePool
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

N = 48
#: numbers that kill the loader worker which reads them
DEADLY: list[int] = []
MAIN: list[int] = []


def read(number: int) -> int:
    if number in DEADLY and os.getpid() not in MAIN:  # the process that waits for it does nothing else by then
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class Data(Dataset[int]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return read(index)


class Stream(IterableDataset[int]):
    """Divides itself among loader workers, and its shards are its residues."""

    def __init__(self, of: int = 1, index: int = 0) -> None:
        self.of, self.index = of, index

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        of, index = (worker.num_workers, worker.id) if worker is not None else (1, 0)
        return map(read, range(self.index + self.of * index, N, self.of * of))


class Shardable(Stream):
    def shard(self, num_shards: int, index: int) -> Stream:
        return Stream(num_shards, index)


KINDS: dict[str, Any] = {"map": Data, "stream": Stream, "shards": Shardable}


def one_life(kind: str, deadly: list[int], persistent: bool, dispatch: bool, state: Any) -> tuple[list[int], Any, str]:
    """What was served until the newest state, that state, and what the error said."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0 if state is None else 9)
    transport = TorchDist() if dispatch else Single()
    DEADLY.extend(deadly)
    MAIN.append(os.getpid())
    script: Any = DataLoader(KINDS[kind](), 3, kind == "map", num_workers=2, persistent_workers=persistent)
    loader: Any = prepare_data_loader(script, transport=transport, dispatch_batches=dispatch)
    if state is not None:
        loader.load_state_dict(state)
    state, served, committed = loader.state_dict(), [], 0
    try:
        for number, batch in enumerate(loader):
            served += [one for each in transport.all_gather_objects(batch.tolist()) for one in each]
            if number % 3 == 0:
                state, committed = loader.state_dict(), len(served)
    except Exception as error:  # noqa: BLE001 - whatever it is
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise once more, wherever it is then
        return served[:committed], state, f"{type(error).__name__}: {error}"
    return served, None, "none"


@pytest.mark.parametrize("deadly", [0, 31])
@pytest.mark.parametrize(("kind", "persistent"), [("map", False), ("map", True), ("stream", True), ("shards", False)])
def test_a_job_whose_worker_was_killed_goes_on(world: MakePool, kind: str, deadly: int, persistent: bool) -> None:
    ((served, state, text),) = world(1, join=False).run(one_life, kind, [deadly], persistent, False, None)
    assert text.startswith("RuntimeError: DataLoader worker (pid")
    ((due, _, error),) = world(1, join=False).run(one_life, kind, [], persistent, False, state)
    assert (sorted(served + due), error) == (list(range(N)), "none")
    assert due


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_are_sent_batches_hear_of_a_worker_that_was_killed(world: MakePool, kind: str) -> None:
    (served, state, text), (other, _, heard) = world(2).run(one_life, kind, [31], False, True, None)
    assert text.startswith("RuntimeError: DataLoader worker (pid")
    assert heard == f"PeerFailed: rank 0 could not read the next batch: {text}"
    assert other == served
    for due, _, error in world(2).run(one_life, kind, [], False, True, state):
        assert (sorted(served + due), error) == (list(range(N)), "none")
