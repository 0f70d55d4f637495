"""Show the accumulation of the newest Accelerator, under the name by which scripts ask for it."""

from __future__ import annotations

from typing import Any, final

from accel_state import AccumulationState, PartialWindow
from accel_state.run_context import follow, newest_accumulation


@final
class GradientState:
    """The attributes of the newest Accelerator's `gradient_state`, whichever instance is asked.

    Raises:
        RuntimeError: From each attribute, as long as there is no Accelerator.
    """

    __slots__ = ()
    #: True: prepared schedules follow optimizer steps
    adjust_scheduler = True

    def __init__(self, gradient_accumulation_plugin: Any = None) -> None:
        if gradient_accumulation_plugin is not None:
            raise ValueError(
                "GradientState(plugin): windows belong to an Accelerator; pass"
                " Accelerator(gradient_accumulation_plugin=plugin)"
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"GradientState has no attribute {name!r}")
        return getattr(self.window, name)

    @property
    def window(self) -> AccumulationState:
        """The accumulation itself, with everything that it can tell."""
        accumulation = newest_accumulation()
        if accumulation is None:
            raise RuntimeError("GradientState shows the window of an Accelerator; create an Accelerator first")
        return accumulation

    @property
    def initialized(self) -> bool:
        """True if there is an Accelerator to show."""
        return newest_accumulation() is not None

    @property
    def sync_with_dataloader(self) -> bool:
        """True if the end of a loader ends a window."""
        return self.window.at_epoch_end is not PartialWindow.CARRY

    @staticmethod
    def _reset_state() -> None:
        follow(None)
