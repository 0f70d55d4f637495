"""The window of the newest Accelerator, under the name by which scripts ask for it."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, final

from accel_state import AccumulationState, PartialWindow


@final
class GradientState:
    """Where the newest Accelerator of this process stands in its window and its loaders; every instance is a view.

    Raises: RuntimeError from each attribute as long as there is no Accelerator.
    """

    _newest: ClassVar[weakref.ref[AccumulationState] | None] = None

    def __init__(self, gradient_accumulation_plugin: Any = None) -> None:
        if gradient_accumulation_plugin is not None:
            raise ValueError(
                "GradientState(plugin): windows belong to an Accelerator; pass"
                " Accelerator(gradient_accumulation_plugin=plugin)"
            )

    @classmethod
    def follow(cls, accumulation: AccumulationState) -> None:
        """Shows this window from now on."""
        cls._newest = weakref.ref(accumulation)

    @classmethod
    def _reset_state(cls) -> None:
        cls._newest = None

    @property
    def window(self) -> AccumulationState:
        """The window itself, with everything that it can tell."""
        accumulation = None if self._newest is None else self._newest()
        if accumulation is None:
            raise RuntimeError("GradientState shows the window of an Accelerator; create an Accelerator first")
        return accumulation

    @property
    def initialized(self) -> bool:
        """Whether there is an Accelerator to show."""
        return self._newest is not None and self._newest() is not None

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch ends with an optimizer step."""
        return self.window.sync_gradients

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        self.window._set_sync_gradients(sync_gradients)

    @property
    def num_steps(self) -> int:
        """Micro-batches to an optimizer step."""
        return self.window.num_steps

    @property
    def adjust_scheduler(self) -> bool:
        """True: prepared schedules follow optimizer steps."""
        return True

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the end of a loader ends a window."""
        return self.window.at_epoch_end is not PartialWindow.CARRY

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        """The arguments of the plugin that differ from its defaults."""
        return self.window.plugin_kwargs

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being iterated."""
        return self.window.in_dataloader

    @property
    def active_dataloader(self) -> Any:
        """The prepared loader that is being iterated, or None."""
        return self.window.active_dataloader

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is the last batch of the active loader."""
        return self.window.end_of_dataloader

    @property
    def remainder(self) -> int:
        """Samples of the job's current batch that are no repetitions; 0 when all are real, -1 outside a loop."""
        return self.window.remainder
