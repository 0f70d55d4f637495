"""End a script's loops: training loaders after the last step, and others after a few batches."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

#: batches of a pass in which nothing is trained
EVALUATION_BATCHES = 2
#: the types of tokens
IDS = (torch.int32, torch.int64)
#: seconds for passes over training loaders of a batch each, once all steps are made
FURTHER_S = 8.0


class RehearsalOver(BaseException):
    """The signal that a script has made its steps, and would go on for ever without further batches.

    It is no Exception, so that the handlers of a script do not catch it.
    """


def length_or_none(loader: Any) -> int | None:
    """Return the number of batches of a loader, or None if it is not known, as of a stream."""
    with suppress(TypeError):
        return len(loader)
    return None
