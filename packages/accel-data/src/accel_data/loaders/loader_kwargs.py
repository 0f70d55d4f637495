"""The settings of a DataLoader, to make another one like it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from accel_data.loaders.loader import DataLoaderShard

KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)


def settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What the loader was given, less its dataset and samplers.

    Raises: TypeError for a loader whose class iterates in a way of its own, which another loader could not repeat.
    """
    if type(loader).__iter__ not in (DataLoader.__iter__, DataLoaderShard.__iter__):
        raise TypeError(
            f"{type(loader).__name__} iterates in a way of its own (it defines __iter__), which is lost when it is"
            " sharded; prepare a plain DataLoader, and put what it does into the dataset or the collate_fn"
        )
    return {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
