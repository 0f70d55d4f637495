"""Datasets of sane ranks that have things of their own: none of them is refused."""

import collections
import datetime
import functools
import os
import random
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import Ending
from accel_ops.fingerprint import check_same_dataset
from accel_testing import MakePool
from odd_datasets import Holds, Odd, Slotted, Stream, data, seeded
from suite.toy_models import RangeDataset, RangeStream
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset


class Place(NamedTuple):
    rank: int
    world_size: int


@dataclass
class Options:
    rank: int
    threads: list[int]


class Lazy(list[Any]):
    """A list that reads nothing before it is asked."""

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("a sample was read")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("the samples were read")


class Patient(Dataset[Any]):
    """A dataset whose length only rank 0 knows by now."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        if self.rank:
            raise RuntimeError("not counted yet")
        return 8


def refused(make: Callable[[int], Any]) -> str:
    """What the check says of the datasets that the ranks make; an empty text when it lets them pass."""
    transport = TorchDist()
    try:
        check_same_dataset(make(transport.rank), transport)
    except ValueError as error:
        return str(error)
    return ""


def open_file(rank: int) -> Any:
    file = tempfile.TemporaryFile()  # noqa: SIM115 # it stays open as long as the dataset
    file.write(b"x" * rank)
    return file


def with_history(rank: int) -> RangeDataset:
    looked_at = RangeDataset(8)
    return looked_at if rank else (looked_at[3], looked_at)[1]


def with_more(rank: int) -> Holds:
    more = {"opened": [1, 2], "dataset": data()} if rank else {}
    return Holds(files=["a", "b"], **more)


def forget(sample: Any) -> None:
    """A transform."""


# What sane ranks hold, each its own: none of it makes their datasets different.
SANE: dict[str, Callable[[int], Any]] = {
    "its rank": lambda rank: Holds(rank=rank, world_size=2),
    "its device": lambda rank: Holds(device=torch.device("cpu", rank), device_index=rank),
    "its device as a text": lambda rank: Holds(device=f"cuda:{rank}"),
    "a path": lambda rank: Holds(root=f"/tmp/{rank}", folder=Path(f"/tmp/{rank}")),
    "times": lambda rank: Holds(made_at=time.time(), counter=time.perf_counter_ns()),
    "a moment": lambda rank: Holds(made=datetime.datetime.now()),
    "is it the main one": lambda rank: Holds(main=rank == 0, local_rank=rank),
    "an open file": lambda rank: Holds(file=open_file(rank)),
    "random generators": lambda rank: Holds(rng=random.Random(rank), other=random.Random()),
    "numpy's random state": lambda rank: Holds(rng=np.random.RandomState(rank), new=np.random.default_rng(rank)),
    "torch's generator": lambda rank: Holds(generator=torch.Generator().manual_seed(rank)),
    "seeds": lambda rank: Holds(seeds=[rank, rank + 1], seed=rank),
    "a lambda": lambda rank: Holds(transform=lambda sample: sample + rank),
    "a function": lambda rank: Holds(transform=forget, transforms=[forget, forget]),
    "a module with weights": lambda rank: Holds(transform=torch.nn.Linear(2, 2), several=torch.nn.ModuleList()),
    "a partial": lambda rank: Holds(transform=functools.partial(print, rank)),
    "locks and threads": lambda rank: Holds(lock=threading.Lock(), thread=threading.Thread(), local=threading.local()),
    "an iterator": lambda rank: Holds(it=iter([rank]), generator=(at for at in range(rank))),
    "a cache": lambda rank: Holds(_cache={rank: [rank]}, memo=[rank]),
    "a buffer": lambda rank: Holds(buffer=torch.full((3,), float(rank)), _buffer_=[rank]),
    "samples looked at": with_history,
    "more than others": with_more,
    "a list that is filled later": lambda rank: Holds(found=[1] * rank),
    "its place": lambda rank: Holds(where=(rank, 2), place=Place(rank, 2)),
    "settings": lambda rank: Holds(settings={"rank": rank, "path": f"/{rank}", "inner": {"rank": rank, "of": 2}}),
    "options": lambda rank: Holds(options=Options(rank, [rank])),
    "an object of its own": lambda rank: Holds(inner=threading.Event(), uuid=uuid.uuid4()),
    "processes": lambda rank: Holds(pid=os.getpid(), worker_pid=[os.getpid()]),
    "copies of the files": lambda rank: Holds(files=[f"/tmp/{rank}/{at}.png" for at in range(9)]),
    "copies with their labels": lambda rank: Holds(files=[(Path(f"/scratch/{rank}/{at}.png"), at) for at in range(9)]),
    "a split": seeded,
    "a split of a split": lambda rank: Subset(Subset(data(), [3, 1, 4]), [2, 0]),
    "an index by a range": lambda rank: Subset(data(), range(8)),
    "an index by a tensor": lambda rank: Subset(data(), torch.arange(8)),  # type: ignore[arg-type] # as users pass them
    "an index by an array": lambda rank: Subset(data(), np.arange(8)),  # type: ignore[arg-type] # as users pass them
    "tensors": lambda rank: data(),
    "floats with other last bits": lambda rank: TensorDataset(torch.linspace(1, 2, 500) * (1 + rank * 2e-16)),
    "sums with other last bits": lambda rank: Holds(x=np.array([0.1 + 0.2 if rank else 0.3, 1e-17 * rank])),
    "halves with other last bits": lambda rank: Holds(x=np.array([1.125, 0.0625, 2.5]) * (1 + rank * 1e-15)),
    "numbers that are none": lambda rank: Holds(x=torch.tensor([float("nan"), float("inf"), -float("inf")])),
    "half precision": lambda rank: Holds(
        x=torch.ones(3, dtype=torch.bfloat16), y=torch.ones(2, dtype=torch.float8_e5m2)
    ),
    "odd tensors": lambda rank: Holds(
        x=torch.eye(3).to_sparse(), y=torch.ones(2, dtype=torch.cfloat) * (1 + rank * 1e-7), z=torch.tensor(1)
    ),
    "a view": lambda rank: Holds(x=torch.arange(6).view(2, 3).t().expand(3, 2), y=torch.empty(0, 3)),
    "a concatenation": lambda rank: ConcatDataset([data(), Subset(data(), [1, 2])]),
    "a concatenation by +": lambda rank: data() + data(),
    "arrays": lambda rank: Holds(
        x=np.arange(999), y=np.array(["a", "b"]), z=np.array([{"a": [1]}, None], dtype=object)
    ),
    "arrays of times": lambda rank: Holds(t=np.array(["2020-01-01"], dtype="M8[s]"), v=np.zeros(2, dtype="i4,f4")),
    "texts": lambda rank: ["first", "second", "\ud800", "x" * 10**5],
    "lists of everything": lambda rank: Holds(x=[1, True, None, 2.5, b"b", "t", 1j, np.int64(3), Place(1, 2), forget]),
    "a dict of lists": lambda rank: {"text": ["a", "b"], "label": [0, 1]},
    "a list of dicts": lambda rank: [{"text": "a", "label": 0}, {"label": 1, "text": "b"}],
    "a dict that grew otherwise": lambda rank: Holds(by_name={"b": [2], "a": [1]} if rank else {"a": [1], "b": [2]}),
    "a set": lambda rank: Holds(labels={"cat", "dog", "eel"}, more=frozenset(range(1000))),
    "a deque": lambda rank: Holds(x=collections.deque([rank]), y=collections.UserList([1])),
    "a counter and a default": lambda rank: Holds(x=collections.Counter("aab"), y=collections.defaultdict(list, a=[1])),
    "enums": lambda rank: Holds(kinds=[signal.SIGINT, Ending.DROP]),
    "a lazy list": lambda rank: Holds(samples=Lazy(range(9))),
    "like Hugging Face": lambda rank: Holds(_fingerprint=uuid.uuid4().hex, _format_kwargs={}, _distributed=None),
    "said to be distributed": lambda rank: Holds(_distributed=True),
    "a stream": lambda rank: RangeStream(5),
    "a stream with floats": lambda rank: Stream(share=rank / 2, name=f"rank {rank}", verbose=rank == 0),
    "a stream with an epoch": lambda rank: Stream(epoch=rank, shuffle_seed=rank, base_seeds=(rank, 1), _epoch=rank),
    "a stream of a split": lambda rank: Stream(source=seeded(rank), start=0),
    "a stream with its process": lambda rank: Stream(pid=os.getpid(), device_index=rank, gpu=rank),
    "nothing": lambda rank: Holds(),
    "empty": lambda rank: Subset(data(), []),
    "no dataset": lambda rank: range(9),
    "one of slots": lambda rank: Slotted(),
    "one that answers nothing": lambda rank: Odd(OSError()),
    "a length that one rank does not know": lambda rank: Patient(rank),
}


def alarms() -> dict[str, str]:
    return {name: told for name, make in SANE.items() if (told := refused(make))}


def test_sane_datasets_raise_no_alarm(world: MakePool) -> None:
    assert world(2).run(alarms) == [{}, {}]
