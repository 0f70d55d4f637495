"""Keep where a rehearsal stands: in which phase, and in which module."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accel_rehearse.nested_tensors import tensors_in

SCRIPT, PREPARE, FORWARD, BACKWARD, STEP, EVALUATION = (
    "script",
    "prepare",
    "forward",
    "backward",
    "optimizer step",
    "evaluation",
)


class Stage:
    """The phase and the module that a script is in.

    In all phases but that of the script, new tensors of floats are fakes, as they would be on the device.
    """

    def __init__(self) -> None:
        self.phase = SCRIPT
        #: whether the newest forward was made without gradients
        self.evaluating = False
        #: whether a forward was made in a backward
        self.recomputing = False
        #: the name of the module whose backward is under way, or nothing
        self.handled = ""
        self.names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._modules: list[tuple[nn.Module | None, str]] = [(None, "")]

    @property
    def module(self) -> str:
        """The name of the innermost module whose forward is under way, or nothing."""
        return self._modules[-1][1]

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Set the phase inside the block."""
        before, self.phase, self.evaluating = self.phase, phase, False
        try:
            yield
        finally:
            self.phase, self.handled = before, ""

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note that the forward of a module begins, as a hook of torch for all modules."""
        if self.phase != SCRIPT or next(module.parameters(), None) is not None:
            self.recomputing |= self.phase == BACKWARD
            if not self.module:
                self._before = self.phase
                if self.phase == SCRIPT:
                    self.evaluating = not torch.is_grad_enabled()
                    self.phase = FORWARD
            self._modules.append((module, self.names.get(module) or self.module or type(module).__name__))

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Note that the forward of a module has ended, or failed, as a hook of torch for all modules.

        Args:
            module: The module.
            args: Its arguments.
            output: Its result.
        """
        if self._modules[-1][0] is module:
            _, name = self._modules.pop()
            for tensor in tensors_in(output):
                node: Any = tensor.grad_fn  # of whose metadata torch gives another type
                # the innermost module leaves first
                if node and node.metadata.setdefault("module", name) is name:
                    node.register_prehook(lambda _: self.__dict__.update(handled=name))
            if not self.module:
                self.phase = self._before

    def name(self, model: nn.Module) -> None:
        """Note the names of the modules of a model."""
        self.names.update((module, name or type(module).__name__) for name, module in model.named_modules())
