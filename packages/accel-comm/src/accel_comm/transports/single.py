"""The exchange of a process that is alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, final

from accel_comm.transports._base import Reduction, Transport

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@final
class Single(Transport):
    """A world of a single rank: values come back as they are, and nothing waits."""

    rank = 0
    size = 1

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        """`payload` alone in a list. Collective: no other rank exists."""
        return [payload]

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """`x` itself. Collective: no other rank exists."""
        return x

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        """A copy of `x`; a mean of whole numbers is a float, as it is in a larger world.

        Collective: no other rank exists.
        """
        return x / self.size if how == "mean" else x.clone()

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """`x` itself. Collective: no other rank exists."""
        return x

    def scatter(self, what: str, payloads: Sequence[bytes], source: int) -> bytes:
        """The only payload. Collective: no other rank exists."""
        return payloads[source]

    def scatter_tensors(
        self, what: str, sent: Sequence[Sequence[torch.Tensor]], received: Sequence[torch.Tensor], source: int
    ) -> None:
        """Returns at once. Collective: no other rank exists."""

    def all_gather_objects(self, value: T, what: str = "all_gather_objects") -> list[T]:
        """`value` itself, alone in a list. Collective: no other rank exists."""
        return [value]

    def meet(self, name: str, ranks: Sequence[int], note: object) -> list[Any]:
        """The `note`. Collective: no other rank exists."""
        return [note]

    def agree_apart(self, name: str, ranks: Sequence[int], yes: bool) -> bool:
        """`yes`. Collective: no other rank exists."""
        return yes

    def ordered_section(self, first: int) -> AbstractContextManager[None]:
        """The block runs at once. Collective: no other rank exists."""
        return nullcontext()
