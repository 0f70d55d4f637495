"""A job that only serves data, and commits what it served: start it again after a crash, and it goes on.

serve.py FOLDER KIND WORKERS [STORE RANK PROCESSES]
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accel_comm import Transport
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_data import ConsumptionLog, prepare_data_loader
from accel_state import AccumulationState
from safetensors import safe_open
from safetensors.torch import save_file
from suite.toy_models import RangeDataset
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler, WeightedRandomSampler

EPOCHS = 3
SAMPLES = 120
#: samples of a step of the whole job
TOGETHER = 12
#: steps to a commit
EVERY = 3
PAUSE_S = 0.002


class Buckets(Sampler[list[int]]):
    """Batches of 1 to 4 samples, in an order of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(SAMPLES, generator=self.generator)
        sizes = torch.randint(1, 5, (SAMPLES,), generator=self.generator)
        ends = [0, *sizes.cumsum(0).tolist()]
        for start, end in pairwise(ends):
            if batch := order[start:end].tolist():
                yield batch


class Stream(IterableDataset[Tensor]):
    """Every `of`-th number from `index` on; it says where it stands."""

    def __init__(self, of: int = 1, index: int = 0) -> None:
        self.of, self.index, self.at, self.begin = of, index, 0, 0

    def __iter__(self) -> Iterator[Tensor]:
        begin, self.begin = self.begin, 0
        for at, number in enumerate(range(self.index, SAMPLES, self.of), start=1):
            if at > begin:
                self.at = at
                yield torch.tensor(number)


class Stateful(Stream):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["at"]


class Shardable(Stream):
    def shard(self, num_shards: int, index: int) -> Stream:
        return Stream(num_shards, index)


class StatefulShards(Stateful):
    def shard(self, num_shards: int, index: int) -> Stateful:
        return Stateful(num_shards, index)


STREAMS = {"stream": Stream, "stateful": Stateful, "shards": Shardable, "stateful shards": StatefulShards}
KINDS = ["sequential", "shuffled", "weighted", "buckets", *STREAMS]


def script(kind: str, workers: int, world: int) -> DataLoader[Any]:
    """The loader as its user makes it; the batch of the whole job is the same at any number of processes."""
    size, data = TOGETHER // world, RangeDataset(SAMPLES)
    if kind in STREAMS:
        return DataLoader(STREAMS[kind](), size, num_workers=workers)
    if kind == "buckets":
        return DataLoader(data, batch_sampler=Buckets(), num_workers=workers)
    if kind == "weighted":
        weighted = WeightedRandomSampler([1.0, 3.0] * (SAMPLES // 2), SAMPLES)
        return DataLoader(data, size, sampler=weighted, num_workers=workers)
    return DataLoader(data, size, shuffle=kind == "shuffled", num_workers=workers)


def commit(path: Path, served: list[list[int]], state: dict[str, Any]) -> None:
    """Writes one file, whole or not at all: tensors as safetensors, everything else as its JSON."""
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value.contiguous()
            return {"tensor": name}
        return {key: plain(one, f"{name}.{key}") for key, one in value.items()} if isinstance(value, dict) else value

    text = json.dumps({"served": served, "state": plain(state, "state")})
    save_file(tensors, path.with_suffix(".partial"), metadata={"json": text})
    os.replace(path.with_suffix(".partial"), path)


def committed(path: Path) -> tuple[list[list[int]], dict[str, Any] | None]:
    if not path.exists():
        return [], None
    with safe_open(path, framework="pt") as file:

        def back(value: dict[str, Any]) -> Any:
            return file.get_tensor(value["tensor"]) if "tensor" in value else value

        found = json.loads(file.metadata()["json"], object_hook=back)
    return found["served"], found["state"]


def serve(folder: Path, kind: str, workers: int, transport: Transport) -> list[list[int]]:
    """Serves what is left of the job, and returns all committed steps of it, with the samples of each."""
    path = folder / "committed"
    served, state = committed(path)
    torch.manual_seed(7 if state is None else int.from_bytes(os.urandom(4)))
    accumulation = AccumulationState()
    loader: Any = prepare_data_loader(
        script(kind, workers, transport.size),
        transport=transport,
        accumulation=accumulation,
        dispatch_batches=False,
        consumption_log=ConsumptionLog(folder / "served"),
    )
    if state is not None:
        loader.load_state_dict(state)
    while loader.iteration < EPOCHS:
        for batch in loader:
            torch.rand(())  # as dropout does
            accumulation.tick()
            tail = accumulation.active.tail if accumulation.active is not None else None
            real = len(batch) if tail is None else tail.real[transport.rank]
            told = transport.all_gather_objects(batch[:real].tolist())
            ids = [one for each in told for one in each]
            # shards are read in turn by whoever has them: which rank got which of a step's samples is no promise
            served.append(sorted(ids) if "shards" in kind else ids)
            time.sleep(PAUSE_S)
            if len(served) % EVERY == 0:
                state = loader.state_dict()
                if transport.rank == 0:
                    commit(path, served, state)
        state = loader.state_dict()
        if transport.rank == 0:
            commit(path, served, state)
    return served


def main() -> None:
    folder, kind, workers, *place = sys.argv[1:]
    if not place:
        serve(Path(folder), kind, int(workers), Single())
        return
    store, rank, size = place
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size))
    serve(Path(folder), kind, int(workers), TorchDist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
