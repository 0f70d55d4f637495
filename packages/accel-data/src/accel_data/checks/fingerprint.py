"""Tells whether all ranks hold the same dataset, before they share it out: without reading a sample."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import FunctionType
from typing import Any

from accel_state import Transport
from torch.utils.data import Dataset, IterableDataset

from accel_data.checks.content_hash import digest_of, hexadecimal, is_scalar, own_attributes, positions

#: what may differ between the ranks of a sane job, by its name
PRIVATE = re.compile(r"seed|epoch|cache|memo|buffer|timestamp|(^|_)(pid|port|device|gpu)(_|$)", re.IGNORECASE)
#: modules of Hugging Face datasets whose objects are datasets, or hold what makes one different from another
HUGGING_FACE = ("datasets.arrow_dataset", "datasets.iterable_dataset", "datasets.table")
#: scalars of a tuple that is a setting, such as (rank, world size), and not data
SETTINGS = 4
#: entries read of each container; datasets looked at of a list of them; attributes that count in all
ENTRIES, NESTED, PARTS = 256, 32, 256
#: rows and differences that an error shows
ROWS, SHOWN = 16, 5

OTHER_SPLITS = (
    "Each rank would take its share of its own dataset: samples would be lost, and others used twice.\n"
    "If a random split or shuffle is drawn anew on each rank, seed it, as by"
    " random_split(..., generator=torch.Generator().manual_seed(0)).\n"
    "If each rank was given its own part, or its own files, pass the whole dataset: each rank is given its part of it."
)
SHARDED = (
    "Likely it is sharded already, and sharding it again would lose samples.\n"
    "Pass the unsharded dataset: each rank is given its part of it. To leave a stream as it is, pass"
    " DataLoaderConfiguration(already_sharded=True), or the keyword already_sharded=True of prepare_data_loader."
)
OFF = (
    " If it is meant so, switch this check off: DataLoaderConfiguration(check_datasets=False), or the keyword"
    " check_datasets=False of prepare_data_loader."
)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells datasets apart: their class, their length where they have one, and a digest of what they hold."""

    kind: str
    length: int | None
    digest: str

    def __str__(self) -> str:
        length = "no length" if self.length is None else f"{self.length} samples"
        return f"{self.kind}, {length}, {self.digest}"


@dataclass(frozen=True, slots=True)
class _Look:
    """A fingerprint, and what it was made of: the digest of each attribute that counts."""

    fingerprint: Fingerprint
    parts: Mapping[str, str]
    stream: bool
    by_node: bool


def fingerprint(dataset: object) -> Fingerprint:
    """The same in every process for the same dataset; no sample is read and no random number drawn.

    Of what the dataset holds a few hundred entries count: two datasets that differ in a single one may look the same.
    """
    return _look(dataset).fingerprint


def check_same_dataset(dataset: object, transport: Transport) -> Fingerprint:
    """The fingerprint of `dataset`, which no rank is seen to hold in another form.

    What only some ranks have, such as an open file or a list that is still empty on others, makes no difference.

    Raises: ValueError on every rank, with what each holds, when datasets differ or are sharded already.
    Collective: every rank of the transport must call.
    """
    mine = _look(dataset)
    if transport.size == 1:
        return mine.fingerprint
    everyone = transport.all_gather_objects(mine)
    differences = _differences(everyone)
    if any(one.by_node for one in everyone):
        differences.append("it is sharded already, by split_dataset_by_node or webdataset.split_by_node")
    if differences:
        raise ValueError(_refusal(everyone, differences))
    return mine.fingerprint


def _look(dataset: object) -> _Look:
    stream = isinstance(dataset, IterableDataset)
    parts: dict[str, str] = {}
    by_node = False
    seen: set[int] = set()
    # breadth first, so that what the dataset holds itself counts even where there is more inside than is looked at
    waiting = deque([("", dataset, stream, ENTRIES)])
    while waiting and len(parts) < PARTS:
        path, holder, flows, room = waiting.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        parts |= _part(path or "the dataset itself", holder, room, stream=False)
        for name, value in _attributes(holder):
            inside = f"{path}.{name}" if path else name
            by_node = by_node or _splits_by_node(name, value)
            parts |= _part(inside, value, room, stream=flows)
            datasets = list(_datasets(inside, name, value))
            for nested, one in datasets:
                parts[f"the class of {nested}"] = type(one).__name__
                flows_too = flows or issubclass(type(one), IterableDataset)
                waiting.append((nested, one, flows_too, max(room // len(datasets), 4)))
    kind, length = type(dataset).__name__, _length(dataset)
    digest = hexadecimal([kind, str(length), *(text for part in sorted(parts.items()) for text in part)])
    return _Look(Fingerprint(kind, length, digest), parts, stream, by_node)


def _splits_by_node(name: str, value: Any) -> bool:
    """Whether an attribute shows that split_dataset_by_node, or a stage of webdataset, gives each node its part."""
    if name == "_distributed":
        return {"rank", "world_size"} <= own_attributes(value).keys()
    stages = value if name == "pipeline" and type(value) is list else ()
    return any(type(one) is FunctionType and one.__name__ == "split_by_node" for one in stages)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    # of a dataset that has no length, or cannot tell it yet, in the many ways in which datasets say so
    except (
        TypeError,
        NotImplementedError,
        AttributeError,
        ValueError,
        OverflowError,
        RuntimeError,
        LookupError,
        OSError,
    ):
        return None


def _attributes(holder: object) -> list[tuple[str, Any]]:
    found = own_attributes(holder)
    names = sorted(name for name in found if type(name) is str and not PRIVATE.search(name))
    return [(name, found[name]) for name in names]


def _part(path: str, value: Any, room: int, *, stream: bool) -> dict[str, str]:
    """What counts of one attribute. A scalar may be the rank, the device or a path; a stream's may be its bounds."""
    if stream and type(value) is int:
        return {path: str(value) if abs(value) < 2**64 else hex(value)}
    if stream and type(value) is range and abs(value.start) < 2**64 > abs(value.stop):
        return {path: repr(value)}
    settings = not stream and type(value) is tuple and len(value) <= SETTINGS and all(map(is_scalar, value))
    digest = None if settings else digest_of(value, room)
    return {} if digest is None else {path: digest}


def _datasets(path: str, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The datasets inside of one attribute, with their paths."""
    entries = [(path, value)]
    if type(value) in (list, tuple):
        entries = [(f"{path}[{position}]", value[position]) for position in positions(len(value), NESTED)]
    elif type(value) is dict:
        entries = [(f"{path}[{key!r}]", one) for key, one in islice(value.items(), NESTED) if type(key) in (int, str)]
    named = name.strip("_") in ("dataset", "datasets")
    for place, one in entries:
        kind = type(one)
        if issubclass(kind, Dataset) or kind.__module__ in HUGGING_FACE or (named and own_attributes(one)):
            yield place, one


def _differences(everyone: Sequence[_Look]) -> list[str]:
    """In words, what differs between two ranks that both have it."""
    kinds = {one.fingerprint.kind for one in everyone}
    if len(kinds) > 1:
        return ["the class"]
    found = []
    if len({one.fingerprint.length for one in everyone} - {None}) > 1:
        found.append("the length")
    for path in sorted(set.intersection(*(set(one.parts) for one in everyone))):
        values = [one.parts[path] for one in everyone]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), 0)
        if other:
            found.append(f"{path} ({values[0]} on rank 0, {values[other]} on rank {other})")
    return found


def _refusal(everyone: Sequence[_Look], differences: Sequence[str]) -> str:
    rows = [f"\n  rank {rank}: {one.fingerprint}" for rank, one in enumerate(everyone)]
    if len(rows) > ROWS:
        rows[ROWS:] = [f"\n  and {len(rows) - ROWS} ranks more"]
    shown = [*differences[:SHOWN], *(["more"] if len(differences) > SHOWN else [])]
    return (
        f"all ranks share one dataset, and hold different ones:{''.join(rows)}\nWhat differs: {'; '.join(shown)}.\n"
        + (SHARDED if any(one.stream or one.by_node for one in everyone) else OTHER_SPLITS)
        + OFF
    )
