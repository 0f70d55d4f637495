"""Any DataLoader becomes the one of a rank: what comes out, and what is refused."""

import random
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy
import pytest
import torch
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_data import BatchSamplerShard, DataLoaderShard, SeedableRandomSampler, prepare_data_loader
from accel_ops import set_seed
from accel_testing import MakePool
from suite.toy_models import RangeDataset, RangeStream
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

Layout = list[list[list[int]]]


class EveryThird(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 12, 3))

    def __len__(self) -> int:
        return 4


class Pairs(Sampler[list[int]]):
    """A batch sampler of the user's own."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 5], [1, 4], [2, 3], [6]])

    def __len__(self) -> int:
        return 4


class Around(Pairs):
    """A batch sampler of the user's own that draws from a sampler of torch's."""

    def __init__(self) -> None:
        self.sampler = RandomSampler(range(8))


def shards(make: Callable[[], DataLoader[Any]], world: int, **settings: Any) -> list[DataLoader[Any]]:
    return [prepare_data_loader(make(), num_processes=world, process_index=rank, **settings) for rank in range(world)]


def layout(make: Callable[[], DataLoader[Any]], world: int, **settings: Any) -> Layout:
    return [[batch.tolist() for batch in shard] for shard in shards(make, world, **settings)]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shuffled(seed: int = 0, n: int = 12, size: int = 1) -> DataLoader[Tensor]:
    return DataLoader(RangeDataset(n), size, shuffle=True, generator=seeded(seed))


def sequential(n: int = 8, size: int = 2) -> DataLoader[Tensor]:
    return DataLoader(RangeDataset(n), size)


@pytest.mark.parametrize("world", [1, 2])
def test_a_loader_is_re_created_as_a_data_loader_shard(world: int) -> None:
    """S42, S43: a DataLoaderShard, which is a DataLoader."""
    assert issubclass(DataLoaderShard, DataLoader)
    original = sequential()
    for shard in shards(lambda: original, world):
        assert type(shard) is DataLoaderShard
        assert isinstance(shard, DataLoader)
        assert shard is not original


def test_each_rank_gets_every_other_batch() -> None:
    """S44, S45: different portions, which together are everything."""
    assert layout(sequential, 2) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_step_takes_the_scripts_batch_size_times_the_number_of_processes(world: int) -> None:
    """S46"""
    for step in zip(*layout(lambda: sequential(64, 16), world), strict=True):
        assert sum(map(len, step)) == 16 * world


def test_the_length_is_divided_by_the_number_of_processes() -> None:
    """S47, S49: training and validation alike."""
    for make in (lambda: sequential(20), lambda: shuffled(n=20, size=2)):
        assert [len(shard) for shard in shards(make, 2)] == [5, 5]
        assert [len(batches) for batches in layout(make, 2)] == [5, 5]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_split_batches_leaves_the_length_as_it_is(world: int) -> None:
    """S48: the batch size is that of the whole job."""
    for shard in shards(lambda: sequential(10, 4), world, split_batches=True):
        assert len(shard) == 3
        first, *_ = shard
        assert len(first) == 4 // world


def test_loaders_make_the_table_of_two_cpus() -> None:
    """S56: both ranks get equally many batches of one size."""
    assert layout(lambda: sequential(10), 2) == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
    assert layout(lambda: sequential(10), 2, even_batches=False) == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7]]]
    assert layout(lambda: sequential(10, 4), 2, split_batches=True) == [
        [[0, 1], [4, 5], [8, 9]],
        [[2, 3], [6, 7], [0, 1]],
    ]
    assert layout(lambda: DataLoader(RangeStream(11), 2), 2) == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 0]]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(RangeDataset(12), 2, sampler=EveryThird()),
        lambda: DataLoader(RangeDataset(12), batch_sampler=Pairs()),
        lambda: DataLoader(RangeDataset(12), batch_sampler=BatchSampler(EveryThird(), 1, True)),
        lambda: DataLoader(RangeDataset(12), 3, sampler=WeightedRandomSampler([1.0] * 12, 12, generator=seeded(0))),
        lambda: DataLoader(RangeDataset(12), 2, sampler=SubsetRandomSampler([3, 5, 7, 9], generator=seeded(0))),
        lambda: DataLoader(RangeDataset(12), batch_size=None),
    ],
)  # fmt: skip
def test_any_sampler_is_sharded_batch_by_batch(make: Callable[[], DataLoader[Tensor]]) -> None:
    """S50: no DistributedSampler is needed."""
    plain = [batch.tolist() for batch in make()]
    assert layout(make, 2, even_batches=False) == [plain[0::2], plain[1::2]]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_only_a_ranks_own_samples_are_read(world: int) -> None:
    """S51: no rank loads the items of another."""
    datasets = [RangeDataset(12) for _ in range(world)]
    for rank, dataset in enumerate(datasets):
        loader = prepare_data_loader(DataLoader(dataset, 2), num_processes=world, process_index=rank)
        batches = [batch.tolist() for batch in loader]
        assert dataset.reads == list(chain(*batches))
        assert len(dataset.reads) == 12 // world
    assert sorted(chain(*(dataset.reads for dataset in datasets))) == list(range(12))


def test_shuffling_works_with_the_default_batch_size() -> None:
    """S54: each epoch covers every sample once."""
    loaders = shards(shuffled, 2)
    for _ in range(2):
        seen = [batch.item() for loader in loaders for batch in loader]
        assert sorted(seen) == list(range(12))


@pytest.mark.parametrize("source", [RangeDataset, RangeStream])
def test_the_original_dataset_is_behind_the_prepared_loader(source: Any) -> None:
    """S57: `len(loader.dataset)` counts the whole dataset."""
    dataset = source(11)
    for world in (1, 2):
        for shard in shards(lambda: DataLoader(dataset, 2), world):
            if source is RangeDataset:
                assert shard.dataset is dataset
                assert len(shard.dataset) == 11
            elif world == 2:
                assert shard.dataset.dataset is dataset  # type: ignore[attr-defined] # the reader of a stream has it


def test_gathered_and_truncated_batches_are_the_dataset_in_order() -> None:
    """S58: `gather` then `[:len(loader.dataset)]`."""
    for n in (10, 11, 12):
        # mypy infers no lambda with a default
        steps = zip(*layout(lambda n=n: sequential(n), 2), strict=True)  # type: ignore[misc]
        gathered = [index for step in steps for part in step for index in part]
        assert gathered[:n] == list(range(n))


def test_a_batch_sampler_object_stays_the_same_instance() -> None:
    for batch_sampler in (Pairs(), BatchSampler(SequentialSampler(range(8)), 2, False)):
        loader = DataLoader(RangeDataset(8), batch_sampler=batch_sampler)
        (alone,) = shards(lambda loader=loader: loader, 1)  # type: ignore[misc] # mypy infers no lambda with a default
        assert alone.batch_sampler is batch_sampler
        # mypy infers no lambda with a default
        for shard in shards(lambda loader=loader: loader, 2):  # type: ignore[misc]
            assert isinstance(shard.batch_sampler, BatchSamplerShard)
            assert shard.batch_sampler.batch_sampler is batch_sampler


def everything_random(loader: DataLoader[Any]) -> list[Any]:
    own = loader.generator.get_state().tolist() if loader.generator is not None else None
    # NumPy's type has another form too
    return [torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist(), own]  # type: ignore[index]


def drawn_by_preparing() -> list[bool]:
    results = []
    for seedable in (False, True):
        for loader in (
            shuffled(),
            DataLoader(RangeDataset(8), shuffle=True, num_workers=2),
            DataLoader(RangeStream(8)),
        ):
            before = everything_random(loader)
            prepare_data_loader(
                loader, use_seedable_sampler=seedable, rng_types=["torch", "generator"], transport=TorchDist()
            )
            results.append(everything_random(loader) == before)
    return results


def test_preparing_draws_nothing_from_any_generator(world: MakePool) -> None:
    assert world(2).run(drawn_by_preparing) == [[True] * 6] * 2
    loader = shuffled()
    before = everything_random(loader)
    shards(lambda: loader, 3)
    prepare_data_loader(loader)
    prepare_data_loader(loader, use_seedable_sampler=True, transport=Single())
    assert everything_random(loader) == before


def test_a_seedable_sampler_takes_the_place_of_the_random_one() -> None:
    """§2.3: it is under the shard, and keeps what the random one was told."""
    loader = DataLoader(RangeDataset(8), 2, sampler=RandomSampler(range(8), replacement=True, num_samples=6))
    for shard in shards(lambda: loader, 2, use_seedable_sampler=True, data_seed=3):
        sampler = shard.batch_sampler.batch_sampler.sampler  # type: ignore[union-attr] # a shard is there
        assert type(sampler) is SeedableRandomSampler
        assert (sampler.replacement, sampler.num_samples, sampler.initial_seed) == (True, 6, 3)
    assert loader.sampler is not sampler


def seedable_epochs(data_seed: int | None, world: int = 2) -> list[Layout]:
    def make() -> DataLoader[Tensor]:
        return DataLoader(RangeDataset(16), 2, shuffle=True)

    loaders = shards(make, world, use_seedable_sampler=True, data_seed=data_seed)
    return [[[batch.tolist() for batch in loader] for loader in loaders] for _ in range(3)]


def test_a_seed_gives_the_same_epochs_again_and_every_epoch_is_new() -> None:
    """S59"""
    first = seedable_epochs(5)
    torch.manual_seed(77)
    assert seedable_epochs(5) == first
    assert seedable_epochs(6) != first
    assert len({str(epoch) for epoch in first}) == 3
    for epoch in first:
        assert sorted(chain(*chain(*epoch))) == list(range(16))


class Numbered(BatchSampler):
    """A batch sampler of a library's own, which draws from the sampler that it was given."""

    epoch = 7


def test_a_seed_reaches_the_sampler_of_a_batch_sampler_of_ones_own() -> None:
    """Without a change to it: sentence-transformers gives each loader such a sampler."""
    own = Numbered(RandomSampler(range(8)), 2, drop_last=False)
    loader = shards(lambda: DataLoader(RangeDataset(8), batch_sampler=own), 1, use_seedable_sampler=True, data_seed=5)[
        0
    ]
    torch.manual_seed(77)
    again = shards(lambda: DataLoader(RangeDataset(8), batch_sampler=own), 1, use_seedable_sampler=True, data_seed=5)[0]
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in again]
    assert type(own.sampler) is RandomSampler


def test_without_a_data_seed_the_global_seed_decides() -> None:
    set_seed(1)
    first = seedable_epochs(None)
    set_seed(1)
    assert seedable_epochs(None) == first
    set_seed(2)
    assert seedable_epochs(None) != first


def test_setting_the_epoch_gives_its_order_again() -> None:
    (loader,) = shards(shuffled, 1, use_seedable_sampler=True, data_seed=1)
    first = [batch.item() for batch in loader]
    assert [batch.item() for batch in loader] != first
    loader.set_epoch(0)  # type: ignore[attr-defined] # a prepared loader has it
    assert [batch.item() for batch in loader] == first


def seedable_here(seed_of_rank: bool) -> list[list[int]]:
    transport = TorchDist()
    torch.manual_seed(100 + transport.rank)
    loader = DataLoader(RangeDataset(8), shuffle=True)
    shard = prepare_data_loader(
        loader,
        use_seedable_sampler=True,
        data_seed=200 + transport.rank if seed_of_rank else None,
        transport=transport,
    )
    return [[batch.item() for batch in shard] for _ in range(2)]


@pytest.mark.parametrize("seed_of_rank", [False, True])
def test_ranks_take_the_seed_of_rank_zero(world: MakePool, seed_of_rank: bool) -> None:
    zero, one = world(2).run(seedable_here, seed_of_rank)
    for epoch in zip(zero, one, strict=True):
        assert sorted(chain(*epoch)) == list(range(8))
    sampler = SeedableRandomSampler(range(8), data_seed=200 if seed_of_rank else 100)
    assert zero[0] == list(sampler)[0::2]


def test_a_sampler_that_is_not_random_is_no_seedable_one() -> None:
    for shard in shards(sequential, 2, use_seedable_sampler=True):
        # a shard is there
        assert isinstance(shard.batch_sampler.batch_sampler.sampler, SequentialSampler)  # type: ignore[union-attr]


def test_the_rank_and_world_of_a_transport_are_the_default() -> None:
    loader = prepare_data_loader(sequential(), transport=Single())
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for rank in range(2):
        shard = prepare_data_loader(sequential(), transport=Single(), num_processes=2, process_index=rank)
        assert next(iter(shard)).tolist() == [2 * rank, 2 * rank + 1]


def prepared_twice() -> DataLoader[Any]:
    return shards(sequential, 2)[0]


@pytest.mark.parametrize(
    ("loader", "settings", "kind", "words"),
    [
        (lambda: [1, 2], {}, TypeError, "only a torch.utils.data.DataLoader can be prepared, found a list"),
        (
            lambda: DataLoader(RangeDataset(8), sampler=DistributedSampler(RangeDataset(8), 2, 0)),
            {},
            ValueError,
            "has a DistributedSampler, .* Remove the DistributedSampler",
        ),
        (prepared_twice, {}, ValueError, "prepared already; prepare it once"),
        (lambda: sequential(8, 3), {"split_batches": True}, ValueError, "batch_size=3 is not a round multiple of 2"),
        (
            lambda: DataLoader(RangeDataset(8), batch_sampler=Pairs()),
            {"split_batches": True},
            ValueError,
            "needs a batch_size; found a Pairs without one",
        ),
        (sequential, {"process_index": 2}, ValueError, "process_index=2 of num_processes=2: expected 0 to 1"),
        (sequential, {"num_processes": 0, "process_index": 0}, ValueError, "num_processes=0: expected at least 1"),
        (sequential, {"rng_types": ["numpy"]}, ValueError, "rng_types 'numpy': expected some of cuda, generator"),
        (sequential, {"dispatch_batches": True}, ValueError, "dispatch_batches=True .* needs their transport"),
        (
            lambda: DataLoader(RangeDataset(8), batch_sampler=Around()),
            {"use_seedable_sampler": True},
            ValueError,
            "cannot reach the RandomSampler inside Around; give it a SeedableRandomSampler yourself",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_prepared_is_refused_in_words(
    loader: Callable[[], Any], settings: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        prepare_data_loader(loader(), **{"num_processes": 2, "process_index": 0, **settings})


def test_one_process_may_have_a_distributed_sampler() -> None:
    loader = DataLoader(RangeDataset(4), sampler=DistributedSampler(RangeDataset(4), 1, 0, shuffle=False))
    assert [batch.item() for batch in prepare_data_loader(loader)] == [0, 1, 2, 3]


def test_an_order_that_ranks_do_not_share_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="RandomSampler has no generator, so each of the 2 ranks .* pass generator="):
        shards(lambda: DataLoader(RangeDataset(8), shuffle=True), 2)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (sequential, {}),
        (shuffled, {}),
        (lambda: DataLoader(RangeDataset(8), shuffle=True), {"use_seedable_sampler": True, "data_seed": 0}),
    ],
)
def test_an_order_that_ranks_share_is_not_warned_of(
    make: Callable[[], DataLoader[Any]], settings: dict[str, Any]
) -> None:
    # it has a length
    assert sorted(chain(*chain(*layout(make, 2, **settings)))) == list(range(len(make().dataset)))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [{"num_processes": 2}, {"process_index": 1}])
def test_half_a_place_is_refused(place: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a rank's share needs both; pass both, or a transport"):
        prepare_data_loader(DataLoader(RangeDataset(4)), **place)
