"""A pass over a loader that is told by hand how far it is."""

from dataclasses import dataclass

from accel_state import BatchPadding


@dataclass(eq=False)
class ToyPass:
    """A pass that ends windows with its last batch, if it is the active one."""

    loader: object = "loader"
    rows: int | None = None
    last: bool = False
    tail: BatchPadding | None = None
    #: steps that it was told of
    steps: int = 0

    def begin_micro_batch(self, *, active: bool) -> bool:
        return active and self.last

    def note_step(self) -> None:
        self.steps += 1
