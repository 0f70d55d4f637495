"""The context of one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import final

from torch import nn

from accel.build import Components
from accel.preparation import Preparer


@final
class MicroBatch(AbstractContextManager[None]):
    """Counts a micro-batch; while no step is due gradients of these models stay in this process, unless `always`.

    A micro-batch that fails takes its window with it.

    Written out, as a generator in a stack of contexts costs a tiny step some of its time.

    Raises: ValueError, when it is entered, for a model that was not prepared.
    """

    __slots__ = ("_always", "_components", "_models", "_open", "_preparer")

    def __init__(
        self, components: Components, preparer: Preparer, models: Sequence[nn.Module], *, always: bool
    ) -> None:
        self._components = components
        self._preparer = preparer
        self._models = models
        self._always = always
        self._open: list[AbstractContextManager[None]] | None = None

    def __enter__(self) -> None:
        containers, components = [], self._components
        for model in self._models:
            containers.append(self._preparer.container(model, "accumulate"))
        if components.accumulation.tick() or self._always:
            return
        self._open = []
        for container in containers:
            at_home = components.strategy.synchronising(container, enabled=False)
            at_home.__enter__()
            self._open.append(at_home)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._components.accumulation.leave()
        if kind is not None:
            self._components.accumulation.abandon()
        while self._open:
            self._open.pop().__exit__(kind, error, trace)
