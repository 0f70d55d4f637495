"""The options of torch.compile for prepared models: whole, or block by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accel_parallel import like_blocks
from accel_parallel.stages.compile import compile_in_place
from torch import nn

from accel.handlers import KwargsHandler

#: entries of a config file that are fields under a shorter name
_SHORT = ("use_fullgraph", "use_dynamic")
_TRUTHS = frozenset({"fullgraph", "dynamic", "use_regional_compilation"})
_FROM_WORDS = _TRUTHS | {"backend", "mode"}


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """The options by which `prepare` compiles models.

    Args:
        backend: The compiler; "no", or None, leaves models as they are.
        mode: A mode of `torch.compile`.
        fullgraph: Refuse code that breaks the graph.
        dynamic: Compile for any shapes; None to do so when shapes change.
        options: Options of the compiler.
        disable: Do nothing, for a test.
        use_regional_compilation: Compile each block of a list of like blocks, as transformers have, by itself: one
            compilation serves all of them.
    """

    backend: str | None = "no"
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: dict[str, Any] | None = None
    disable: bool = False
    use_regional_compilation: bool = False

    def __post_init__(self) -> None:
        self.backend = (self.backend or "no").lower()

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> TorchDynamoPlugin:
        """Return the plugin for the entries of `dynamo_config` in a config file.

        Raises:
            ValueError: An entry is unknown, or neither true nor false.
        """
        fields = {name.removeprefix("use_") if name in _SHORT else name: word for name, word in words.items()}
        unknown = sorted(fields.keys() - _FROM_WORDS)
        wrong = [name for name in fields.keys() & _TRUTHS if fields[name].lower() not in ("true", "false")]
        if unknown or wrong:
            problems = [f"unknown entry {name}" for name in unknown]
            problems += [f"{name}={fields[name]}: expected true or false" for name in sorted(wrong)]
            raise ValueError("dynamo_config: " + "; ".join(problems))
        truths: dict[str, Any] = {name: fields[name].lower() == "true" for name in fields.keys() & _TRUTHS}
        return cls(**{**fields, **truths})

    def problems(self) -> list[str]:
        """Return what is wrong with it, in words."""
        # these are the names of entry points and built-in backends; asking for them imports the compiler
        if self.backend == "no" or self.backend in known_backends():
            return []
        return [f"dynamo_backend={self.backend!r}: expected one of no, {', '.join(known_backends())}"]

    def settings(self) -> dict[str, Any]:
        """Return arguments of torch.compile."""
        own = {"mode": None if self.mode == "default" else self.mode}
        return {name: it for name, it in (self.to_dict() | own).items() if name != "use_regional_compilation"}


def known_backends() -> list[str]:
    """Return the compilers that torch finds here, those for debugging included."""
    return sorted(torch.compiler.list_backends(exclude_tags=()))


def compile_model(model: nn.Module, plugin: TorchDynamoPlugin) -> None:
    """Compile a model in place, as the plugin says."""
    if plugin.backend != "no":
        blocks = like_blocks(model) if plugin.use_regional_compilation else []
        compile_in_place(blocks or [model], **plugin.settings())


def from_names(
    backend: str | None, plugin: TorchDynamoPlugin | None, words: Mapping[str, str] | None = None
) -> TorchDynamoPlugin:
    """Return the plugin that two arguments ask for, or that of the launcher if none is given.

    Args:
        backend: The compiler.
        plugin: The compiler with all its options.
        words: The words of the launcher.

    Raises:
        ValueError: Both are given, or the backend is not known.
    """
    if backend is not None and plugin is not None:
        raise ValueError("dynamo_backend and dynamo_plugin: give one of them")
    chosen = plugin or (
        TorchDynamoPlugin.from_words(words or {}) if backend is None else TorchDynamoPlugin(backend=backend)
    )
    if problems := chosen.problems():
        raise ValueError("; ".join(problems))
    return chosen
