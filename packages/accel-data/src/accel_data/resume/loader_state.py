"""Keep the position of a loader as a value, and check that a loader can resume from it."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

FORMAT = 1


class ResumeError(ValueError):
    """An error of a loader that cannot resume from a state."""


class StreamPosition(NamedTuple):
    """The positions of the sources of a stream.

    Args:
        taken: Samples taken of each source, by number.
        states: The state of each source that has one, by number.
    """

    taken: dict[int, int]
    states: dict[int, Any]


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The position of a loader, of JSON values and tensors, for the whole job.

    Args:
        format: Version of this format.
        begun: Whether the state was taken inside the epoch.
        ended: Whether it was taken at the last batch, so that the next epoch begins.
        seeded: Whether the next epoch draws a seed for its workers.
        epoch: Number of the epoch.
        consumed: Items of the order that the job was served.
        unit: What is counted: "samples", "batches", or samples of "shards" or of "readers".
        step: Items of an optimizer step.
        length: Samples of the dataset, or None if it has no length.
        dataset: Fingerprint of the dataset.
        digest: Checksum of the order up to the position.
        rng_at_start: Random states at the start of the epoch.
        rng_now: Random states that ranks share at the position, or all of them at the end of the epoch.
        drawn_by: Class of the sampler, or None for a stream.
        sampler: State of a sampler that has one.
        streams: Number of readers or of logical shards of a stream.
        next_stream: The reader that is next.
        taken: Samples taken of each source.
        sources: State of each source.
        front: State of each source at the start of the epoch.
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
        """Return the positions of the sources of a stream."""
        taken = {} if self.ended else {int(source): count for source, count in self.taken.items()}
        return StreamPosition(taken, {int(source): state for source, state in self.sources.items()})

    def at_start(self) -> LoaderState:
        """Return the state at the start of the same epoch, with the random states of the position."""
        return replace(self, consumed=0, digest=None, next_stream=0, taken={}, sources=self.front)

    @staticmethod
    def merged(entries: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge the entries of ranks that read sources of their own, with the newest of each source.

        Args:
            entries: Entries of a state on each rank.
        """
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
        """Return the state as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, state: Any, *, fresh: LoaderState, strict: bool) -> LoaderState:
        """Return a recorded state if a loader can resume from it, and raise otherwise.

        A change that only breaks a promise causes a warning.

        Args:
            state: What `state_dict` of a prepared loader has returned.
            fresh: The entries that any state of this loader has.
            strict: Whether a dataset that changed is an error, and not part of the warning.

        Raises:
            ResumeError: The message lists all problems.
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
        sorts = {name: type(value) for name, value in asdict(cls()).items() if value is not None}
        odd = [
            f"{name} is {value!r}" for name, value in state.items() if type(value) is not sorts.get(name, type(value))
        ]
        if odd:
            raise ResumeError(f"the state is damaged: {', '.join(odd)}")
        try:
            recorded = cls(**state)
        except TypeError as error:
            raise ResumeError(f"the state has an entry that no loader writes: {error}") from None
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
    """Return values of sources as JSON can hold them: in order, with text keys, and without None.

    Args:
        of_sources: The values by the number of their source.
    """
    return {str(source): entry for source, entry in sorted(of_sources.items()) if entry is not None}


def _samples(length: int | None) -> str:
    return "no length" if length is None else f"{length} samples"
