"""Ranks that hold parts of the same layers are served the same samples, and count as one rank."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from accel import Accelerator, DataLoaderConfiguration, ParallelismConfig
from accel.utils import gather_object
from accel_testing import MakePool, RankFailure, assert_same_numbers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

ITEMS = torch.arange(23)


class Noisy(Dataset[tuple[Tensor, Tensor, float]]):
    """Its samples depend on the random generators of the process that reads."""

    def __len__(self) -> int:
        return len(ITEMS)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, float]:
        return ITEMS[index], torch.rand(1), random.random()


class Shuffled(IterableDataset[int]):
    """A stream whose order no setting tells: rank 0 reads for all."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(23).tolist())


class Shards(Shuffled):
    """A stream that can be cut at its source."""

    def __init__(self, items: range = range(23)) -> None:
        self.items = items

    def shard(self, num_shards: int, index: int) -> "Shards":
        return Shards(self.items[index::num_shards])

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)


def shuffled_map(rank: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(rank)
    return DataLoader(Noisy(), 3, shuffle=True, generator=generator)


def sampled_map(rank: int) -> DataLoader[Any]:
    sampler = RandomSampler(ITEMS, generator=torch.Generator().manual_seed(rank))
    return DataLoader(TensorDataset(ITEMS), 3, sampler=sampler, drop_last=True)


def read_by_workers(rank: int) -> DataLoader[Any]:
    return DataLoader(Noisy(), 3, shuffle=True, num_workers=2)


def stream_of_unknown_order(rank: int) -> DataLoader[Any]:
    return DataLoader(Shuffled(), 3)


def stream_cut_at_its_source(rank: int) -> DataLoader[Any]:
    return DataLoader(Shards(), 3)


class Served(NamedTuple):
    batches: list[Any]
    gathered: list[Any]
    sums: list[Any]
    objects: list[Any]
    draws: list[float]
    state: dict[str, Any]
    resumed: list[Any]


def serve(make: Any, data: DataLoaderConfiguration, ways: dict[str, Any]) -> Served:
    accelerator = Accelerator(cpu=True, dataloader_config=data, **ways)
    mesh, rank = accelerator.run.mesh, accelerator.process_index
    # the generators of a rank that holds another part of the layers stand elsewhere, and have to follow
    seed = mesh.data_rank(rank) if rank % mesh.tensor == 0 else 100 + rank
    torch.manual_seed(seed)
    random.seed(seed)
    loader = accelerator.prepare(make(seed))
    served = Served([], [], [], [], [], {}, [])
    for number, batch in enumerate(loader):
        ids = batch[0] if isinstance(batch, list) else batch
        served.batches.append(batch)
        served.gathered.append(accelerator.gather_for_metrics(ids).tolist())
        served.sums.append(accelerator.reduce(ids.sum().double(), "mean").item())
        served.objects.append(gather_object([ids.tolist()]))
        served.draws.append(nn.functional.dropout(torch.ones(64)).sum().item() + random.random())
        if number == 1:
            served.state.update(loader.state_dict())
    again = accelerator.prepare(make(seed + 1))
    again.load_state_dict(served.state)
    served.resumed.extend(again)
    return served


def places() -> tuple[bool, list[int], Any]:
    config = ParallelismConfig(dp_replicate_size=2, tp_size=2)
    accelerator = Accelerator(cpu=True, parallelism_config=config)
    mesh = accelerator.torch_device_mesh
    assert mesh is not None
    names = ["data_parallel_rank", "data_parallel_shard_rank", "tensor_parallel_rank"]
    assert accelerator.parallelism_config == config
    return accelerator.is_fsdp2, [getattr(accelerator, name) for name in names], mesh.mesh_dim_names


def test_an_accelerator_tells_its_place_on_each_axis(world: MakePool) -> None:
    names = ("dp_replicate", "dp_shard", "tp")
    assert world(4).run(places) == [(True, [copy, 0, part], names) for copy in range(2) for part in range(2)]
    accelerator = Accelerator(cpu=True)
    assert (accelerator.is_fsdp2, accelerator.parallelism_config, accelerator.torch_device_mesh) == (False, None, None)
    with pytest.raises(RuntimeError, match="has no ParallelismConfig"):
        _ = accelerator.tensor_parallel_rank


def share_unlike_data() -> None:
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=2))
    accelerator.prepare(DataLoader(TensorDataset(ITEMS + accelerator.process_index), 3))


def test_ranks_of_one_group_with_unlike_data_are_refused(world: MakePool) -> None:
    with pytest.raises(RankFailure, match="all ranks share one dataset, and hold different ones"):
        world(2).run(share_unlike_data)


WAYS = [
    (shuffled_map, DataLoaderConfiguration()),
    (shuffled_map, DataLoaderConfiguration(split_batches=False, even_batches=False)),
    (shuffled_map, DataLoaderConfiguration(ending="exact")),
    (sampled_map, DataLoaderConfiguration()),
    (shuffled_map, DataLoaderConfiguration(dispatch_batches=True)),
    (read_by_workers, DataLoaderConfiguration()),
    (stream_of_unknown_order, DataLoaderConfiguration()),
    (stream_cut_at_its_source, DataLoaderConfiguration()),
]


@pytest.mark.parametrize(("make", "data"), WAYS)
def test_four_ranks_in_two_groups_are_served_as_two_ranks(
    world: MakePool, make: Any, data: DataLoaderConfiguration
) -> None:
    """Also places in a pass, and what is drawn: layers that are whole on all ranks of a group drop out alike."""
    ways = {"parallelism_config": ParallelismConfig(dp_shard_size=2, tp_size=2)}
    found = world(4).run(serve, make, data, ways)
    wanted = world(2).run(serve, make, data, {})
    for rank, served in enumerate(found):
        assert_same_numbers(served._asdict(), wanted[rank // 2]._asdict(), atol=0)


ALONE = [
    (shuffled_map, DataLoaderConfiguration()),
    (sampled_map, DataLoaderConfiguration(dispatch_batches=True)),
    (stream_of_unknown_order, DataLoaderConfiguration()),
    (stream_cut_at_its_source, DataLoaderConfiguration()),
]


@pytest.mark.filterwarnings("ignore:.* samples are read again")
@pytest.mark.parametrize(("make", "data"), ALONE)
def test_two_ranks_in_one_group_are_served_as_one_process(
    world: MakePool, make: Any, data: DataLoaderConfiguration
) -> None:
    ways = {"parallelism_config": ParallelismConfig(tp_size=2)}
    wanted = serve(make, data, {})
    for served in world(2).run(serve, make, data, ways):
        assert_same_numbers(served._asdict(), wanted._asdict(), atol=0)
