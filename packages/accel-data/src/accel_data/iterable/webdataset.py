"""Shards a pipeline of webdataset by its list of URLs, which it cannot do by itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, final

from torch.utils.data import IterableDataset

#: stages that divide the URLs among nodes and workers
SPLITTERS = {"split_by_node", "split_by_worker", "single_node_only"}


@final
class UrlShards(IterableDataset[Any]):
    """A pipeline whose shards are runs of its URLs, read by the other stages as they are."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @property
    def num_shards(self) -> int:
        """How many URLs there are."""
        return len(self.dataset.pipeline[0].urls)

    def shard(self, num_shards: int, index: int) -> Any:
        """The pipeline over one of `num_shards` runs of the URLs, without the stages that divide them."""
        first, *rest = self.dataset.pipeline
        part = copy.copy(self.dataset)
        few = copy.copy(first)
        each, more = divmod(self.num_shards, num_shards)
        # the first ones have one URL more: ranks take every other shard, and so as many URLs as can be
        begin = each * index + min(index, more)
        few.urls = first.urls[begin : begin + each + (index < more)]
        part.pipeline = [few, *(stage for stage in rest if getattr(stage, "__name__", None) not in SPLITTERS)]
        return part

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)


def by_urls(dataset: Any) -> Any:
    """A webdataset pipeline that begins with a list of URLs, as a stream that can be sharded; others as they are."""
    stages = getattr(dataset, "pipeline", None)
    if not isinstance(stages, list) or not stages or not isinstance(getattr(stages[0], "urls", None), list):
        return dataset
    # what counts the samples of the whole, `slice` and `with_epoch`, would count those of each shard
    counts = any(getattr(getattr(stage, "f", None), "__name__", "") == "islice" for stage in stages)
    if counts or dataset.repetitions != 1 or dataset.nsamples > 0:
        return dataset
    return UrlShards(dataset) if type(stages[0]).__module__.startswith("webdataset") else dataset
