"""The context of one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import final

from torch import nn

from accel.preparation import Preparer


@final
class MicroBatch(AbstractContextManager[None]):
    """The context that counts a micro-batch, and keeps gradients in this process while no step is due.

    A micro-batch that fails takes its window with it. It is written out: a generator in a stack of contexts costs a
    tiny step some of its time.

    Args:
        preparer: The models that are prepared, and their strategy.
        models: The models whose gradients the micro-batch adds to.
        always: Exchange gradients in each micro-batch.

    Raises:
        ValueError: It is entered for a model that was not prepared.
    """

    __slots__ = ("_always", "_models", "_open", "_preparer")

    def __init__(self, preparer: Preparer, models: Sequence[nn.Module], *, always: bool) -> None:
        self._preparer = preparer
        self._models = models
        self._always = always
        self._open: list[AbstractContextManager[None]] | None = None

    def __enter__(self) -> None:
        preparer, containers = self._preparer, []
        for model in self._models:
            containers.append(model if model in preparer.models else preparer.container(model, "accumulate"))
        components = preparer.components
        if components.accumulation.tick() or self._always:
            return
        self._open = []
        for container in containers:
            local_only = components.strategy.synchronising(container, enabled=False)
            local_only.__enter__()
            self._open.append(local_only)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        accumulation = self._preparer.components.accumulation
        accumulation.leave()
        if kind is not None:
            accumulation.abandon()
        while self._open:
            self._open.pop().__exit__(kind, error, trace)
