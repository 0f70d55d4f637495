"""The place of a loader as a value: what it holds, and whether a loader can continue from it."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

FORMAT = 1


class ResumeError(ValueError):
    """A loader cannot continue from the state that it was given."""


class StreamPosition(NamedTuple):
    """Where the sources of a stream stand: the samples taken of each, and what each said of its place."""

    taken: dict[int, int]
    states: dict[int, Any]


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The place of a loader: JSON and tensors, one for the whole job.

    `begun` says whether it was taken inside the epoch, `ended` at its last batch, so that the next pass is the next
    epoch, and `seeded` whether the next pass draws a seed for its workers. `rng_at_start` are the generators when the
    epoch began, and `rng_now` the shared ones when the state was taken, or all of them at its end; `consumed`
    counts items of the order that the job was served, samples or whole batches by `unit`; `step` those of an optimizer
    step. `streams`, `taken` and `sources` are the places of the readers of a stream, or of its logical shards;
    `front` is what sources said of their places when the epoch began.
    """

    format: int = FORMAT
    begun: bool = False
    ended: bool = False
    seeded: bool = True
    epoch: int = 0
    consumed: int = 0
    unit: str = "samples"
    step: int = 1
    length: int | None = None
    dataset: str | None = None
    digest: int | None = None
    rng_at_start: dict[str, Any] = field(default_factory=dict)
    rng_now: dict[str, Any] = field(default_factory=dict)
    drawn_by: str | None = None
    sampler: dict[str, Any] | None = None
    streams: int = 0
    next_stream: int = 0
    taken: dict[str, int] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    front: dict[str, Any] = field(default_factory=dict)

    def position(self) -> StreamPosition:
        """The places of the sources of a stream."""
        taken = {} if self.ended else {int(source): count for source, count in self.taken.items()}
        return StreamPosition(taken, {int(source): state for source, state in self.sources.items()})

    @staticmethod
    def merged(entries: list[dict[str, Any]]) -> dict[str, Any]:
        """What a state says of its place, if each rank tells of its own sources: of each source what is newest."""
        if len(entries) == 1:
            return entries[0]
        taken: dict[str, int] = {}
        newest: dict[str, tuple[int, Any]] = {}
        for of_rank in entries:
            counts = of_rank.get("taken", {})
            taken |= {source: max(count, taken.get(source, 0)) for source, count in counts.items()}
            for source, state in of_rank["sources"].items():
                count = counts.get(source, 0)
                if source not in newest or count > newest[source][0]:
                    newest[source] = count, state
        sources = {source: state for source, (_, state) in newest.items()}
        front = {source: state for of_rank in entries for source, state in of_rank.get("front", {}).items()}
        return entries[0] | {"consumed": sum(taken.values()), "taken": taken, "sources": sources, "front": front}

    def as_dict(self) -> dict[str, Any]:
        """The state as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, state: Any, *, fresh: LoaderState, strict: bool) -> LoaderState:
        """The state in `state`, when a loader whose own state is `fresh` can continue from it.

        What only breaks a promise is said in one warning; so is, without `strict`, a dataset that changed.

        Raises: ResumeError that lists all that is wrong.
        """
        if not isinstance(state, dict) or not isinstance(state.get("format"), int):
            raise ResumeError(
                f"load_state_dict needs what state_dict of a prepared loader returned; found a {type(state).__name__}"
                + (f" with {', '.join(map(repr, state)) or 'nothing'}" if isinstance(state, dict) else "")
            )
        if state["format"] > FORMAT:
            raise ResumeError(
                f"the state has format {state['format']} and this version of accel-data reads up to {FORMAT};"
                " use the version that wrote it, or a newer one"
            )
        known = {entry.name for entry in fields(cls)}
        wrong = sorted(set(state) - known)
        if wrong:
            raise ResumeError(f"the state has entries that no loader writes: {', '.join(map(repr, wrong))}")
        sorts = {name: type(value) for name, value in asdict(cls()).items() if value is not None}
        odd = [
            f"{name} is {value!r}" for name, value in state.items() if type(value) is not sorts.get(name, type(value))
        ]
        if odd:
            raise ResumeError(f"the state is damaged: {', '.join(odd)}")
        recorded = cls(**state)
        recorded._check(fresh, strict=strict)
        return recorded

    def _check(self, fresh: LoaderState, *, strict: bool) -> None:
        wrong: list[str] = []
        changed: list[str] = []
        if self.length != fresh.length:
            changed.append(f"the dataset had {_samples(self.length)} and has {_samples(fresh.length)}")
        elif self.dataset is not None and fresh.dataset is not None and self.dataset != fresh.dataset:
            changed.append(f"the dataset had the fingerprint {self.dataset} and has {fresh.dataset}")
        if self.consumed < 0 or self.epoch < 0:
            wrong.append(f"epoch {self.epoch}, consumed {self.consumed}: neither can be negative")
        if self.streams and self.unit == "samples" and self.length is not None and self.consumed > self.length:
            wrong.append(f"{self.consumed} samples of {self.length} were served: that cannot be")
        if self.drawn_by != fresh.drawn_by:
            wrong.append(
                f"the order was drawn by {self.drawn_by or 'a stream'} and is drawn by"
                f" {fresh.drawn_by or 'a stream'} now"
            )
        begun = bool(self.consumed or self.sources)
        streams = self.streams != fresh.streams and bool(self.streams and fresh.streams)
        if begun and self.unit == "readers" and (streams or self.unit != fresh.unit):
            wrong.append(
                f"the stream divides itself, and was read by {self.streams} processes or loader workers in all; now it"
                f" is read by {fresh.streams}, whose parts differ. Continue with {self.streams}"
            )
        elif self.consumed and self.unit != fresh.unit:
            wrong.append(
                f"the order was counted in {self.unit} and this loader counts {fresh.unit}; use the same kind of"
                " sampler and of dispatching as before"
            )
        elif begun and self.unit != "shards" and streams:
            wrong.append(
                f"the stream was read by {self.streams} loader workers and is now by {fresh.streams}: its order depends"
                f" on that; use num_workers={self.streams}"
            )
        if strict:
            wrong += changed
        if wrong:
            hint = "; load_state_dict(state, strict=False) accepts another dataset in the same order" if changed else ""
            hint = hint if strict else ""
            raise ResumeError(f"the loader cannot continue: {'; '.join(wrong)}{hint}")
        broken = [f"{change}, so samples may be repeated or left out" for change in changed]
        if self.consumed and self.step != fresh.step:
            unit = "batches" if self.unit == "batches" else "samples"
            broken.append(
                f"an optimizer step took {self.step} {unit} of the job and takes {fresh.step} now: each is still"
                " served once, but steps no longer see the same ones"
            )
        if broken:
            warnings.warn(f"continuing, although {'; '.join(broken)}", stacklevel=4)


def as_entries(of_sources: dict[int, Any]) -> dict[str, Any]:
    """What a state says of sources, as JSON can hold it: in their order, without what is None."""
    return {str(source): entry for source, entry in sorted(of_sources.items()) if entry is not None}


def _samples(length: int | None) -> str:
    return "no length" if length is None else f"{length} samples"
