"""What reads a stream for one rank, batch by batch: in the process of the loader, or in each of its workers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from accel_data.iterable.read_batch import ReadBatch
from accel_data.iterable.stateful import is_stateful
from accel_data.resume.loader_state import LoaderState, StreamPosition
from accel_data.sharding.rank_slices import DataRank, Ending

#: the state of a source that has given all it has; its own may be that of its front again
ENDED = {"ended": "all of it was served"}
NOTHING = object()


def is_ended(state: Any) -> bool:
    """Whether a state is that of a source that has given all it has."""
    return isinstance(state, dict) and state.get("ended") == ENDED["ended"]


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """What readers need to know of their rank and loader.

    `rows` counts the samples of a batch of this rank, None if elements are batches. `persistent` says whether workers
    live on from pass to pass.
    """

    where: DataRank
    rows: int | None
    ending: Ending
    workers: int = 0
    persistent: bool = False
    readers: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "readers", max(self.workers, 1))


class Reader(IterableDataset[ReadBatch], ABC):
    """Reads a stream for one rank: what a DataLoader that does not batch itself iterates over."""

    dataset: Any
    settings: ReaderSettings
    #: where the next pass begins; None at the front
    start: StreamPosition | None = None
    #: whether the first batch of the next pass comes with a digest of the first sample
    tells_first = False
    #: what sources said of their places at the end of the newest pass, if they live in workers
    told: dict[int, Any] | None = None
    #: what they said at the beginning of the newest pass, until that pass comes to its end
    begun: dict[int, Any] | None = None

    @abstractmethod
    def read(self, reader: int, start: StreamPosition) -> Iterator[ReadBatch]:
        """The batches of reader number `reader` of this rank; sources are opened in the call."""

    @abstractmethod
    def counts(self, reader: int, given: int, before: dict[int, int]) -> dict[int, int]:
        """Samples taken of each source of that reader, when it has `given` so many after `before`."""

    @abstractmethod
    def current_states(self) -> dict[int, Any]:
        """What the sources of this process say of their places."""

    def front_states(self) -> dict[int, Any]:
        """What the sources say of the front of the next pass, as far as they do.

        A source whose pass was left may go on or begin anew: it is taken back to where that pass began.
        """
        if self.start is not None:
            return self.start.states
        for known in (self.begun, self.told):
            if known is not None:
                return known
        return self.current_states()

    @property
    @abstractmethod
    def unit(self) -> str:
        """What is counted: "samples", "batches", or samples of "shards" or of "readers" of their own."""

    @property
    @abstractmethod
    def streams(self) -> int:
        """How many places a state has."""

    @property
    @abstractmethod
    def rank_alone(self) -> bool:
        """Whether other ranks read other samples, so that only all of them know the place and the end."""

    def __iter__(self) -> Iterator[ReadBatch]:
        start, self.start = self.start, None  # a worker that lives on must not start there again
        worker = get_worker_info()
        return self.read(0 if worker is None else worker.id, start or StreamPosition({}, {}))

    @property
    def rows(self) -> int | None:
        """Samples of a batch of this rank; None if elements are batches."""
        return self.settings.rows

    @property
    def round(self) -> int:
        """Samples, or elements that are batches, that all ranks take together."""
        return self.settings.where.of * (self.settings.rows or 1)

    def place_at(self, start: StreamPosition) -> None:
        """Lets the next pass begin there."""
        self.start, self.told, self.begun = start, None, None

    @abstractmethod
    def cut_into(self, streams: int) -> None:
        """Takes over as many places as a state has.

        Raises: ResumeError if the readers of this world cannot share them.
        """

    @property
    @abstractmethod
    def tells_end(self) -> bool:
        """Whether each reader adds a record at its end."""


def cut_alike(dataset: Any, found: LoaderState) -> None:
    """Cuts a stream into as many logical shards as a state has.

    Raises: ResumeError if the readers of this world cannot share them.
    """
    if isinstance(dataset, Reader) and dataset.unit == found.unit:
        dataset.cut_into(found.streams)


def state_of(source: Any) -> Any:
    """A copy of what a source says of its place: it may go on with the very object that it told."""
    return copy.deepcopy(source.state_dict())


def opened(source: Any, taken: int, state: Any, *, keep: int = 0) -> tuple[Iterator[Any], list[Any]]:
    """The items of a source from its place on, and the first `keep` of those that had to be read again."""
    if is_ended(state):
        return iter(()), []
    if state is not None and is_stateful(source):
        source.load_state_dict(state)
        items = iter(source)
        return items if taken else _at_front(source, items), []
    items = iter(source)
    if not taken:
        return items, []
    again = list(islice(items, min(taken, keep)))
    deque(islice(items, taken - len(again)), maxlen=0)
    # one item more, here and now: with it a stream draws its order, if it draws from a global generator
    return chain(list(islice(items, 1)), items), again


def _at_front(source: Any, items: Iterator[Any]) -> Iterator[Any]:
    """The next pass of a source that was put where one of its passes begins, or has just ended."""
    first = next(items, NOTHING)
    return iter(source) if first is NOTHING else chain([first], items)
