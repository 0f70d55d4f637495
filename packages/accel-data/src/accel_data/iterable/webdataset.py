"""Shard a pipeline of webdataset by its list of URLs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

#: stages that divide the URLs among nodes and workers, or refuse several nodes
SPLITTERS = {"split_by_node", "split_by_worker", "single_node_only"}


def url_shards(dataset: Any) -> tuple[int, Callable[..., Any]] | None:
    """Return the number of URLs of a webdataset pipeline, and the function that makes its shards.

    Returns:
        The number and `shard(num_shards, index)`, which returns the pipeline over a contiguous part of the URLs. None
        if the dataset is no webdataset pipeline over a list of URLs, or has `slice`, `repeat` or `with_epoch`, which
        would count for each shard.
    """
    stages = getattr(dataset, "pipeline", None)
    if not isinstance(stages, list) or not stages or not isinstance(getattr(stages[0], "urls", None), list):
        return None
    # what counts the samples of the whole, `slice` and `with_epoch`, would count those of each shard
    counts = any(getattr(getattr(stage, "f", None), "__name__", "") == "islice" for stage in stages)
    if counts or dataset.repetitions != 1 or dataset.nsamples > 0:
        return None
    ours = type(stages[0]).__module__.startswith("webdataset")
    return (len(stages[0].urls), partial(_shard, dataset)) if ours else None


def shuffles_unseeded(dataset: Any) -> bool:
    """Return whether a webdataset pipeline shuffles without a seed, so that a resumed job would read other samples.

    `WebDataset(urls, shardshuffle=10)` is not found: webdataset draws a seed, and keeps it as it keeps a seed of the
    script.
    """
    stages = getattr(dataset, "pipeline", None)
    return any(
        getattr(getattr(stage, "f", None), "__name__", "") == "_shuffle" and not {"seed", "rng"} & set(stage.kw)
        for stage in (stages if isinstance(stages, list) else ())
    )


def _shard(dataset: Any, num_shards: int, index: int) -> Any:
    """Return the pipeline over one of `num_shards` runs of the URLs, without stages that divide them."""
    first, *rest = dataset.pipeline
    part, stage_of_part = copy.copy(dataset), copy.copy(first)
    least, more = divmod(len(first.urls), num_shards)
    # longer shards come first: ranks take shards in turn, which spreads the longer ones over them
    begin = least * index + min(index, more)
    stage_of_part.urls = first.urls[begin : begin + least + (index < more)]
    part.pipeline = [stage_of_part, *(stage for stage in rest if getattr(stage, "__name__", None) not in SPLITTERS)]
    return part
