"""Time to the first batch of a stream of thousands of files, of two ranks with two loader workers each."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from benchmarks.contestants.accel import Accel
from benchmarks.contestants.accelerate import Accelerate
from benchmarks.row import Lineup, Repetition, Row, Skipped

FILES, ROWS_EACH, BATCH, WORKERS, WORLD = 3000, 4, 8, 2, 2
#: the usual limit of a process; a reader that opens every file ends here
HANDLES = 1024
#: what accel may take: so much of raw's time, and these seconds
RATIO, MORE_S = 1.5, 0.2
#: folders that rank 0 has written; they go with its process
_KEPT: list[TemporaryDirectory[str]] = []


def _write(folder: Path, kind: str) -> None:
    import pyarrow
    import pyarrow.parquet

    for file in range(FILES):
        numbers = list(range(file * ROWS_EACH, (file + 1) * ROWS_EACH))
        if kind == "json":
            (folder / f"{file:05d}.jsonl").write_text("".join(json.dumps({"id": one}) + "\n" for one in numbers))
        else:
            pyarrow.parquet.write_table(pyarrow.table({"id": numbers}), folder / f"{file:05d}.parquet")


def _folder(kind: str) -> str:
    """Where the files are: rank 0 writes them.

    Collective: every rank must call.
    """
    found: list[str | None] = [None]
    if dist.get_rank() == 0:
        _KEPT.append(TemporaryDirectory())
        found = [_KEPT[-1].name]
        _write(Path(_KEPT[-1].name), kind)
    dist.broadcast_object_list(found, src=0)
    return str(found[0])


def _with_handles(rows: list[dict[str, int]]) -> tuple[list[int], int]:
    return [row["id"] for row in rows], len(os.listdir("/proc/self/fd"))


class _First:
    """Seconds from an unprepared stream to its first batch; it keeps the most handles that a worker had."""

    def __init__(self, start: Callable[[], DataLoader[Any]]) -> None:
        self._start = start
        self.handles = 0
        self.took = 0.0

    def __call__(self) -> float:
        began = perf_counter()
        stream = iter(self._start())
        batch = next(stream)
        self.took = perf_counter() - began
        for _, (_, handles) in zip(range(4 * WORKERS), stream, strict=False):
            self.handles = max(self.handles, handles)
        del batch, stream  # ends the workers, outside of what is timed
        return self.took


def _lineup(kind: str) -> Lineup:
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from datasets import load_dataset
        from datasets.distributed import split_dataset_by_node
    except ImportError:
        raise Skipped("pip install datasets") from None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(HANDLES, soft), hard))
    folder = _folder(kind)
    names = sorted(map(str, Path(folder).iterdir()))
    cache = f"{folder}/cache-{dist.get_rank()}"
    whole: Any = load_dataset(kind, data_files=names, split="train", streaming=True, cache_dir=cache)

    def loader(stream: Any) -> DataLoader[Any]:
        return DataLoader(stream, BATCH, num_workers=WORKERS, collate_fn=_with_handles)

    raw = _First(lambda: loader(split_dataset_by_node(whole, dist.get_rank(), WORLD)))
    accel = _First(lambda: Accel().prepared(loader(whole)))
    accelerate = _First(lambda: Accelerate().prepared(loader(whole), dispatch_batches=False))

    def allowed() -> float:
        return RATIO * raw.took + MORE_S

    def theirs() -> Repetition:
        if find_spec("accelerate") is None:
            raise Skipped("pip install accelerate==1.15.0")
        return accelerate

    def made(contestant: Repetition) -> Callable[[], Repetition]:
        return lambda: contestant

    def remark() -> str:
        return f"handles of a loader worker at most: raw {raw.handles}, accel {accel.handles} (raw + 10 are allowed)"

    contestants = {"raw": made(raw), "accel": made(accel), "allowed": made(allowed), "accelerate": theirs}
    return Lineup.of(contestants, remark=remark)


ROWS = tuple(
    Row(
        f"first batch, {FILES:,} {name} files, 2 workers, world {WORLD}",
        partial(_lineup, kind),
        1.0,
        world=WORLD,
        least=5,
        most=15,
        warm_up=1,
        against="allowed",
    )
    for kind, name in (("json", "jsonl"), ("parquet", "parquet"))
)
