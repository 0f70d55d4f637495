"""Hides from a source that it is read in a loader worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

T = TypeVar("T")


def unseen_worker(call: Callable[..., T], *arguments: Any) -> T:
    """What `call` returns, if `get_worker_info()` says nothing in the meantime.

    A source that divides itself among the workers that it sees would divide the shards of one worker again. torch has
    no public way to be in a worker unseen; what is hidden is shown again, whatever happens.
    """
    if get_worker_info() is None:
        return call(*arguments)
    seen, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        return call(*arguments)
    finally:
        torch_worker._worker_info = seen
