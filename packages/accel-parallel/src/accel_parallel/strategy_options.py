"""The base of options that decide more than their strategy, and what they are compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Asked:
    """The settings that a script asks for beside the options of its strategy.

    Args:
        precision: Name of the precision. None says nothing, as with the others.
        accumulation_steps: Micro-batches for each step.
        strategy: Name of the strategy, or None or "auto" if it is left to choose.
        fsdp: Whether there is an FSDP plugin.
        mesh: Whether there is a ParallelismConfig with sizes above 1.
        scaler_options: Whether there are options of the loss scaler.
        ddp_options: Whether there are options of DistributedDataParallel.
        split_batches: Whether the batch size of a loader is that of the whole job.
        tensor_plan: Styles of layers that are divided, by patterns of their names.
    """

    precision: str | None = None
    accumulation_steps: int | None = None
    strategy: str | None = None
    fsdp: bool = False
    mesh: bool = False
    scaler_options: bool = False
    ddp_options: bool = False
    split_batches: bool = False
    tensor_plan: Mapping[str, Any] | None = None


class StrategyOptions(ABC):
    """The options of a strategy that may decide the precision and the length of windows too."""

    @classmethod
    @abstractmethod
    def from_words(cls, words: Mapping[str, str]) -> Self:
        """Return the options for the entries of a config file.

        Raises:
            ValueError: Some names are not known; it lists them.
        """

    @property
    @abstractmethod
    def accumulation_steps(self) -> int | None:
        """The micro-batches to a step that the options say."""

    @property
    @abstractmethod
    def precision(self) -> str | None:
        """The precision that the options say."""

    @abstractmethod
    def problems(self, asked: Asked) -> list[str]:
        """Return all that is wrong with the options, in words: by themselves, and beside what else was asked for."""
