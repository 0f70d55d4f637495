"""Named tuples in trees of tensors."""

from typing import Any, NamedTuple


class Pair(NamedTuple):
    """A named tuple of two."""

    first: Any
    second: Any


class Output(NamedTuple):
    """What a model returns."""

    logits: Any
    loss: Any
