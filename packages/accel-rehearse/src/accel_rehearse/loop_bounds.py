"""Declare where a script's loops end: training loaders after the last step, and others after a few batches."""

from __future__ import annotations

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
