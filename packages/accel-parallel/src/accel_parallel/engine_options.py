"""The base of an engine's options, and what they are compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """What a script asks for beside an engine's options; None and False are silence."""

    precision: str | None = None
    accumulation_steps: int | None = None
    strategy: str | None = None
    fsdp: bool = False
    mesh: bool = False
    scaler_options: bool = False
    ddp_options: bool = False


class EngineOptions(ABC):
    """What a script asks of an engine, which may decide the precision and the length of windows too."""

    @classmethod
    @abstractmethod
    def from_words(cls, words: Mapping[str, str]) -> EngineOptions:
        """The options for the entries of a config file.

        Raises: ValueError that lists names that are not known.
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
        """All that is wrong with the options, in words: by themselves, and beside what else was asked for."""
