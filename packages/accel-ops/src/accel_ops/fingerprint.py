"""Find out if all ranks hold the same dataset, without reading a sample."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from types import FunctionType
from typing import Any, Literal

import torch
from accel_comm import Transport
from torch.utils.data import Dataset, IterableDataset

from accel_ops.content_hash import ROOM, digest_of, hexadecimal, own_attributes

#: what may differ between the ranks of a sane job, by its name
PRIVATE = re.compile(r"seed|epoch|cache|memo|buffer|timestamp|(^|_)(pid|port|device|gpu)(_|$)", re.IGNORECASE)
#: modules of Hugging Face datasets whose objects are datasets, or hold what makes one different from another
HUGGING_FACE = ("datasets.arrow_dataset", "datasets.iterable_dataset", "datasets.table")
#: scalars of a tuple that is a setting, such as (rank, world size), and not data
SETTINGS = 4
#: datasets looked at of a list of them; attributes that count in all; ranks and differences that an error shows
NESTED, PARTS, RANKS, SHOWN = 32, 256, 16, 5
SPLIT_BY_NODE = "it is sharded already, by split_dataset_by_node or webdataset.split_by_node"

OTHER_SPLITS = (
    "Each rank would take its share of its own dataset: samples would be lost, and others used twice.\n"
    "If a random split or shuffle is drawn anew on each rank, seed it, as by"
    " random_split(..., generator=torch.Generator().manual_seed(0)).\n"
    "If each rank was given its own part, or its own files, pass the whole dataset: each rank is given its part of it."
)
SHARDED = (
    "Likely it is sharded already, and sharding it again would lose samples; or each rank shuffles it in a way of its"
    " own: then give the shuffle a seed, as by shuffle(seed=0).\n"
    "Pass the unsharded dataset: each rank is given its part of it. To leave a stream as it is, pass"
    " DataLoaderConfiguration(already_sharded=True), or the keyword already_sharded=True of prepare_data_loader."
)
OFF = (
    ' If it is meant so, let it be a warning, by DataLoaderConfiguration(check_datasets="warn"), or switch the check'
    " off by check_datasets=False; both are keywords of prepare_data_loader, too."
)
UNEQUAL = (
    "\nTheir lengths differ, so ranks would take different numbers of batches, and wait for each other without end:"
    ' a warning is not enough. Give all ranks as many samples, or let ranks end alone by ending="join".'
)
DRAWN = (
    "If numbers are drawn at random, seed them alike on all ranks, as by accel.utils.set_seed(0) before they are drawn:"
    " each rank takes its share of its own numbers, so that a sample of an epoch is not what one process would see."
)
#: what becomes of datasets that differ; by the default, tensors that were made in memory are a warning only
Check = bool | Literal["error", "warn"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A description of a dataset that tells it from others.

    Args:
        kind: Name of the class.
        length: Number of samples, or None if the dataset has no length.
        digest: Twelve hexadecimal digits for all of `parts`.
        parts: A digest for each attribute that counts, by its path.
        drawn: The paths of the parts that look like tensors of random values.
    """

    kind: str
    length: int | None
    digest: str
    parts: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    #: those of the parts that are tensors, as scripts draw them at random
    drawn: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __str__(self) -> str:
        length = "no length" if self.length is None else f"{self.length} samples"
        return f"{self.kind}, {length}, {self.digest}"


def fingerprint(dataset: Any) -> Fingerprint:
    """Return the fingerprint of a dataset, which is the same in every process.

    No sample is read and no random number is drawn. A few hundred entries of what the dataset holds count, so two
    datasets that differ in a single entry may have equal fingerprints.

    Args:
        dataset: A map-style dataset or a stream.
    """
    parts: dict[str, str] = {}
    seen, drawn = set[int](), set[str]()
    # breadth first, so that what the dataset holds itself counts even if there is more inside than is looked at
    waiting = deque([("", dataset, False, ROOM)])
    while waiting and len(parts) < PARTS:
        path, value, stream, room = waiting.popleft()
        if part := _part(value, room, stream=stream):
            parts[path or "the dataset itself"] = part
            drawn |= {path} if _is_drawn(value) else set()
        if _splits_by_node(path, value):
            parts[SPLIT_BY_NODE] = ""
        datasets = {id(holder): (place, holder) for place, holder in _datasets(path, value) if id(holder) not in seen}
        seen |= datasets.keys()
        for place, holder in datasets.values():
            parts[f"the class of {place}"] = type(holder).__name__
            flows = stream or issubclass(type(holder), IterableDataset)
            for name, attribute in own_attributes(holder).items():
                if not PRIVATE.search(name):
                    waiting.append((f"{place}.{name}".lstrip("."), attribute, flows, room // len(datasets)))
    length = None
    # of a dataset that has no length, or does not know it yet, by any of the many errors of datasets
    with suppress(TypeError, AttributeError, ValueError, OverflowError, RuntimeError, LookupError, OSError):
        length = len(dataset)
    return Fingerprint(type(dataset).__name__, length, hexadecimal(sorted(parts.items())), parts, frozenset(drawn))


def check_same_dataset(
    dataset: object, transport: Transport, check: Check = True, *, unequal: bool = False
) -> Fingerprint:
    """Raise or warn if ranks hold different datasets, and return the fingerprint of rank 0.

    An attribute that only some ranks have, such as an open file, makes no difference.

    Args:
        dataset: The dataset of this rank.
        transport: Transport of the ranks that share the dataset.
        check: True raises, but only warns if nothing differs except the values of tensors, as scripts draw them at
            random. "error" raises then too. "warn" warns of every difference, but raises for lengths.
        unequal: Whether ranks may end at different batches: with "warn", different lengths are a warning then.

    Returns:
        The fingerprint on rank 0. Warnings come from rank 0 only.

    Raises:
        ValueError: Datasets differ or are sharded already; every rank raises, and the message has what each holds.

    Collective:
        Every rank of the transport must call.
    """
    mine = fingerprint(dataset)
    if transport.size == 1:
        return mine
    # texts of all to all only if something differs; what differs in a digest may be nothing that counts
    about = hashlib.blake2b(ascii((mine.kind, mine.length, mine.digest)).encode(), digest_size=16).digest()
    if transport.agree("fingerprint of the dataset", about) is not None and SPLIT_BY_NODE not in mine.parts:
        return mine
    everyone = transport.all_gather_objects(mine)
    split = any(SPLIT_BY_NODE in theirs.parts for theirs in everyone)
    unlike = dict(_differences(everyone))
    differences = [*unlike.values(), *([SPLIT_BY_NODE] if split else [])]
    if differences:
        only_drawn = not split and all(unlike.keys() <= theirs.drawn for theirs in everyone)
        rows = [f"\n  rank {rank}: {theirs}" for rank, theirs in enumerate(everyone)]
        rows[RANKS:] = [f"\n  and {len(rows) - RANKS} ranks more"] if len(rows) > RANKS else []
        differences[SHOWN:] = ["more"] if len(differences) > SHOWN else []
        advice = SHARDED if split or isinstance(dataset, IterableDataset) else OTHER_SPLITS
        words = (
            f"all ranks share one dataset, and hold different ones:{''.join(rows)}\n"
            f"What differs: {'; '.join(differences)}.\n{DRAWN if only_drawn else advice}"
        )
        lengths = {theirs.length for theirs in everyone} - {None}
        if check == "warn" and len(lengths) > 1 and not unequal:
            raise ValueError(f"{words}{UNEQUAL}")
        if check != "warn" and not (only_drawn and check != "error"):
            raise ValueError(f"{words}{OFF}")
        if transport.rank == 0:
            warnings.warn(words, stacklevel=3)
    return everyone[0]


def _part(value: Any, room: int, *, stream: bool) -> str | None:
    """Return the digest of an attribute if it counts: scalars of a map-style dataset do not."""
    if stream and type(value) in (int, range):
        with suppress(ValueError):  # Python writes no number of thousands of digits
            return repr(value)
    settings = not stream and type(value) is tuple and len(value) <= SETTINGS and not any(map(digest_of, value))
    return None if settings else digest_of(value, room)


def _is_drawn(value: Any) -> bool:
    """Return whether a value looks drawn at random: tensors, but not one row of integers, which may be an order."""
    if type(value) in (tuple, list) and value:
        return all(type(entry) is torch.Tensor for entry in value)
    return type(value) is torch.Tensor and (value.is_floating_point() or value.dim() > 1)


def _splits_by_node(path: str, value: Any) -> bool:
    """Return whether split_dataset_by_node, or a stage of webdataset, gives each node its part."""
    if path.endswith("pipeline") and type(value) is list:
        return any(type(stage) is FunctionType and stage.__name__ == "split_by_node" for stage in value)
    return f".{path}".endswith("._distributed") and {"rank", "world_size"} <= own_attributes(value).keys()


def _datasets(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the datasets in one attribute with their paths, of which the dataset itself has an empty one."""
    inside: Any = enumerate(value) if type(value) in (list, tuple) else value.items() if type(value) is dict else ()
    named = path.rpartition(".")[2].strip("_") in ("dataset", "datasets")
    entries = [(f"{path}[{key!r}]", entry) for key, entry in islice(inside, NESTED) if type(key) in (int, str)]
    for place, entry in [(path, value), *entries]:
        known = issubclass(type(entry), Dataset) or type(entry).__module__ in HUGGING_FACE
        if known or ((named or not place) and own_attributes(entry)):
            yield place, entry


def _differences(everyone: Sequence[Fingerprint]) -> Iterator[tuple[str, str]]:
    """Yield the path of each part that differs between two ranks that both have it, with a description."""
    if len({theirs.kind for theirs in everyone}) > 1:
        yield "the class", "the class"
        return
    if len({theirs.length for theirs in everyone} - {None}) > 1:
        yield "the length", "the length"
    for path in sorted(set.intersection(*(set(theirs.parts) for theirs in everyone))):
        values = [theirs.parts[path] for theirs in everyone]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), 0)
        if other:
            yield path, f"{path} ({values[0]} on rank 0, {values[other]} on rank {other})"
