"""Make loaders instances of torchdata's StatefulDataLoader, with batches and states of their own."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from torch.utils.data import DataLoader


@cache
def with_torchdata(kind: Any) -> Any:
    """Return a class with torchdata's among its bases, or the class itself if torchdata is not installed.

    Args:
        kind: A class of loaders, whose methods and those of torch's DataLoader come before torchdata's.
    """
    if find_spec("torchdata") is None:
        return kind
    from torchdata.stateful_dataloader import StatefulDataLoader

    of_torch = {name: value for name, value in vars(DataLoader).items() if name not in ("__dict__", "__weakref__")}
    shadow = type("StatefulDataLoader", (StatefulDataLoader,), of_torch)
    # pickles name the class below, as this one has no module to be found in
    own = {"__module__": kind.__module__, "__reduce_ex__": lambda self, _: (_new, (kind,), self.__getstate__())}
    return type(kind.__name__, (kind, shadow), own)


def _new(kind: Any) -> Any:
    return object.__new__(with_torchdata(kind))
