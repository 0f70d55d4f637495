"""Every ending of an epoch, for every kind of source: metrics are exact, and no rank waits for another."""

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_ops import gather_for_metrics
from accel_state import AccumulationState
from accel_testing import MakePool
from suite.soak import Cases
from suite.toy_models import RangeDataset, RangeStream
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

SOURCES = ("map", "sent map", "stream", "sent stream")
KINDS = ("tensor", "dict", "objects", "ragged", "one a batch")
USES = ("plain", "plain", "nested", "broken off")
POLICIES = ("pad", "drop", "exact", "join")


@dataclass(frozen=True)
class Case:
    n: int
    size: int
    source: str
    kind: str
    use: str
    drop_last: bool
    split: bool
    ending: str | None

    def loader(self, accumulation: AccumulationState) -> DataLoader[Tensor]:
        dataset: Any = RangeDataset(self.n) if self.source.endswith("map") else RangeStream(self.n)
        dispatch = {"map": None, "sent map": True, "stream": False, "sent stream": None}[self.source]
        plain = DataLoader[Tensor](dataset, batch_size=self.size, drop_last=self.drop_last)
        return prepare_data_loader(
            plain,
            split_batches=self.split,
            dispatch_batches=dispatch,
            ending=self.ending,
            transport=TorchDist(),
            accumulation=accumulation,
        )

    def expected(self, world: int) -> list[int]:
        together = self.size if self.split else self.size * world
        return list(range(self.n - self.n % together if self.drop_last else self.n))


def sampled(numbers: range, world: int) -> list[Case]:
    cases = []
    for number in numbers:
        chance = random.Random(f"{number} {world}")
        size, split = chance.randint(1, 9), chance.random() < 0.2
        drop_last = chance.random() < 0.3
        cases.append(
            Case(
                n=chance.choice([chance.randint(1, 64), chance.randint(1, 2 * size * world)]),
                size=size * world if split else size,
                source=chance.choice(SOURCES),
                kind=chance.choice(KINDS),
                use=chance.choice(USES),
                drop_last=drop_last,
                split=split,
                ending=None if drop_last else chance.choice([None, "exact"]),
            )
        )
    return cases


def ids_of(batch: Tensor, kind: str, accumulation: AccumulationState) -> list[int]:
    """The ids of a batch of the job, in the shape in which a script might return them; two gathers a batch."""

    def gathered(data: Any, **settings: Any) -> Any:
        return gather_for_metrics(data, TorchDist(), accumulation.active, **settings)

    ids: list[int] = gathered(batch).tolist()
    if kind == "dict":
        found = gathered({"guess": batch * 2, "more": [(batch, torch.stack([batch, batch], dim=1))]})
        assert (found["guess"] // 2).tolist() == found["more"][0][0].tolist() == found["more"][0][1][:, 1].tolist()
        return [number // 2 for number in found["guess"].tolist()]
    if kind == "objects":
        return [one["id"] for one in gathered([{"id": int(one)} for one in batch])]
    if kind == "ragged":
        return [len(one) for one in gathered([torch.zeros(int(one)) for one in batch], use_gather_object=True)]
    if kind == "one a batch":
        firsts = gathered(batch[0]).view(-1).tolist()
        assert firsts == sorted(set(firsts)), firsts
        assert set(firsts) <= set(ids), (firsts, ids)
    return ids


def evaluated(case: Case) -> list[int]:
    accumulation = AccumulationState()
    loader, seen = case.loader(accumulation), list[int]()
    if case.use == "broken off":
        for batch in loader:
            ids_of(batch, case.kind, accumulation)
            break
    if case.use == "nested":
        validation = case.loader(accumulation)
        for number, batch in enumerate(loader):
            if number % 3 == 0:
                inner = [one for part in validation for one in ids_of(part, case.kind, accumulation)]
                assert inner == case.expected(TorchDist().size), inner
            seen += ids_of(batch, case.kind, accumulation)
        return seen
    for batch in loader:
        seen += ids_of(batch, case.kind, accumulation)
    return seen


def wrong_of(cases: list[Case]) -> list[str]:
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for case in cases:
            seen = evaluated(case)
            if seen != case.expected(TorchDist().size):
                wrong.append(f"{case}: {seen}")
    return wrong


@pytest.mark.soak
@pytest.mark.parametrize("size", [1, 2, 3])
def test_metrics_hold_each_sample_once_and_in_order(world: MakePool, cases: Cases, size: int) -> None:
    """T7: sources, batch sizes, result kinds and uses at random."""
    ranks, chosen = world(size), sampled(cases(20, 4000), size)
    for first in range(0, len(chosen), 250):
        assert ranks.run(wrong_of, chosen[first : first + 250], timeout_s=90) == [[]] * size


class Varying(Sampler[list[int]]):
    """Batches whose sizes differ."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[list[int]]:
        first = 0
        for size in self.sizes:
            yield list(range(first, first + size))
            first += size

    def __len__(self) -> int:
        return len(self.sizes)


class Fixed(Varying):
    """Batches of one size, but for the last."""

    drop_last = False

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.batch_size = sizes[0]


VARYING = Varying(3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 2, 4, 1)
FIXED = Fixed(*[3] * 12, 2)

Endings = dict[str, tuple[list[list[int]], list[int], int, list[bool]]]


def under_each_policy(sampler: Varying) -> Endings:
    """By policy: this rank's batches, the ids in metrics, the length, and which batch was said to be the last."""
    found: Endings = {}
    transport, accumulation = TorchDist(), AccumulationState()
    for policy in POLICIES:
        loader = prepare_data_loader(
            DataLoader(RangeDataset(sum(sampler.sizes)), batch_sampler=sampler),
            ending=policy,
            transport=transport,
            accumulation=accumulation,
        )
        batches, metrics, lasts = [], [], []
        for batch in loader:
            batches.append(batch.tolist())
            lasts.append(accumulation.end_of_dataloader)
            if policy != "join":
                metrics += ids_of(batch, "dict", accumulation)
        transport.barrier()
        found[policy] = batches, metrics, len(loader), lasts
    return found


@pytest.mark.parametrize("sampler", [VARYING, FIXED], ids=["varying", "fixed"])
def test_seven_batches_beside_six_end_under_every_policy(world: MakePool, sampler: Varying) -> None:
    """T23: 13 batches of a batch sampler on two ranks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranks = world(2).run(under_each_policy, sampler, timeout_s=10)
    order, whole = list(range(sum(sampler.sizes))), list(sampler)
    for rank, found in enumerate(ranks):
        own = whole[rank::2]
        for policy, count in {"pad": 7, "drop": 6, "exact": 7, "join": 7 - rank}.items():
            batches, _, length, lasts = found[policy]
            assert len(batches) == length == count, policy
            assert lasts == [False] * (count - 1) + [True], policy
            assert batches[:6] == own[:6], policy
        assert found["pad"][1] == found["exact"][1] == order
        assert found["drop"][1] == order[: -sampler.sizes[-1]]
        assert found["join"][0] == own
        assert [len(batch) for batch in found["exact"][0]] == [*map(len, own), *[1] * rank]
        if isinstance(sampler, Fixed):
            assert {len(batch) for batch in found["pad"][0]} == {sampler.batch_size}


def test_a_round_with_a_short_last_batch_is_dropped_whole(world: MakePool) -> None:
    """T23: 14 batches, of which the last is short: six rounds of equal batches."""
    for found in world(2).run(under_each_policy, Fixed(*[3] * 13, 1), timeout_s=10):
        assert found["drop"][1] == list(range(36))
        assert found["pad"][1] == found["exact"][1] == list(range(40))
        assert {policy: len(batches) for policy, (batches, *_) in found.items()} == {
            "pad": 7,
            "drop": 6,
            "exact": 7,
            "join": 7,
        }


def drop_last_and_exact(source: str) -> tuple[int, list[int]]:
    """An ending that is asked for decides, whatever the loader's `drop_last`."""
    dataset: Any = RangeDataset(11) if source == "map" else RangeStream(11)
    transport, accumulation = TorchDist(), AccumulationState()
    loader = prepare_data_loader(
        DataLoader[Tensor](dataset, batch_size=2, drop_last=True),
        dispatch_batches=source == "sent",
        ending="exact",
        transport=transport,
        accumulation=accumulation,
    )
    served = list(map(Tensor.tolist, loader))
    metrics = [one for one in served for one in one]
    counts = transport.all_gather_objects(len(served))
    if len(set(counts)) == 1:
        metrics = [one for batch in loader for one in ids_of(batch, "tensor", accumulation)]
    return len(served), metrics


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("source", ["map", "stream", "sent"])
def test_an_ending_that_is_asked_for_comes_before_drop_last(world: MakePool, source: str, size: int) -> None:
    results = world(size).run(drop_last_and_exact, source)
    assert [count for count, _ in results] == [-(-11 // (2 * size))] * size
    assert [metrics for _, metrics in results] == [list(range(11))] * size


class Batches(IterableDataset[Any]):
    """Batches that a function makes, elements of the stream."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self.make = make
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return (self.make(number) for number in range(self.count))


def widening(number: int) -> Tensor:
    return torch.full((2, number + 1), number)


def words(number: int) -> list[str]:
    return [f"{number}a", f"{number}b"]


def with_words(number: int) -> dict[str, Any]:
    return {"x": torch.tensor([number, number + 100]), "text": words(number)}


def with_a_scale(number: int) -> dict[str, Tensor]:
    return {"x": torch.tensor([number, number + 100]), "scale": torch.tensor(0.5)}


Rounds = list[tuple[Any, list[Any]]]


def dispatched_rounds(make: Callable[[int], Any], count: int, ending: str) -> Rounds:
    """This rank's batches, and what metrics hold of what each of their entries is called."""
    accumulation, found = AccumulationState(), []
    loader = prepare_data_loader(
        DataLoader(Batches(make, count), batch_size=None),
        dispatch_batches=True,
        ending=ending,
        transport=TorchDist(),
        accumulation=accumulation,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loader:
            entries = batch["x"] if isinstance(batch, dict) else batch
            names = [str(one.flatten()[0].item()) if isinstance(one, Tensor) else one for one in entries]
            metrics = gather_for_metrics(names, TorchDist(), accumulation.active, use_gather_object=True)
            found.append((batch, metrics))
    return found


@pytest.mark.parametrize("ending", ["pad", "exact"])
def test_dispatched_batches_of_different_shapes_each_count_once(world: MakePool, ending: str) -> None:
    """Rounds that cannot be joined, and a last one with fewer batches than ranks."""
    ranks = world(3)
    for count in (1, 2, 4, 5, 7):
        for rounds in ranks.run(dispatched_rounds, widening, count, ending):
            assert len(rounds) == -(-count // 3)
            metrics = [one for _, part in rounds for one in part]
            assert metrics == [str(number) for number in range(count) for _ in range(2)]


@pytest.mark.parametrize("ending", ["pad", "exact"])
def test_dispatched_objects_that_cannot_be_cut_each_count_once(world: MakePool, ending: str) -> None:
    ranks = world(2)
    for count in (1, 2, 3):
        for rounds in ranks.run(dispatched_rounds, words, count, ending):
            assert [one for _, part in rounds for one in part] == [
                one for number in range(count) for one in words(number)
            ]


@pytest.mark.parametrize("ending", ["pad", "exact"])
def test_texts_of_a_dispatched_batch_stay_beside_their_tensors(world: MakePool, ending: str) -> None:
    ranks = world(2)
    for count in (1, 2, 3):
        for rounds in ranks.run(dispatched_rounds, with_words, count, ending):
            for batch, _ in rounds:
                assert len(batch["x"]) == len(batch["text"])
                for number, text in zip(batch["x"].tolist(), batch["text"], strict=True):
                    assert text == f"{number % 100}{'ab'[number // 100]}"
            metrics = [one for _, part in rounds for one in part]
            assert metrics == [str(one) for number in range(count) for one in (number, number + 100)]


@pytest.mark.parametrize("ending", ["pad", "exact"])
def test_a_dispatched_batch_may_hold_a_single_number(world: MakePool, ending: str) -> None:
    """A 0-d tensor has no samples to cut."""
    ranks = world(2)
    for count in (1, 2, 3):
        for rounds in ranks.run(dispatched_rounds, with_a_scale, count, ending):
            assert [batch["scale"].tolist() for batch, _ in rounds] == [0.5] * -(-count // 2)
            metrics = [one for _, part in rounds for one in part]
            assert metrics == [str(one) for number in range(count) for one in (number, number + 100)]
