"""What the digest of an order tells apart, and what it does not."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy
import pytest
import torch
from accel_data import DataRank, Ending
from accel_data.sharding import index_order
from accel_data.sharding.index_order import KnownOrder, LazyOrder
from hash_seeds import outputs

N = 96


@dataclass
class Pair:
    name: str
    at: int


class Plain:
    """An object whose words hold its address."""


def digests(items: list[Any], world: int, *, whole: bool, skip: int = 0) -> dict[int, int]:
    """The digest at each place of a pass that begins at item `skip`, asked for at the end, and again along the way."""
    rows = None if whole else 2
    each = world * (rows or 1)
    order = LazyOrder(iter(items), skip, each, whole=whole)
    found = {skip: order.digest(skip)}
    dealt = chain.from_iterable(order.deal(DataRank(0, world), rows=rows, ending=Ending.REPEAT))
    for handed, _ in enumerate(dealt, start=1):
        place = min(skip + handed * each, order.end)
        found[place] = order.digest(place)
    assert found == {place: order.digest(place) for place in found}
    return found


def numbers(items: list[Any]) -> list[int]:
    return list(index_order.sample_numbers(items))


def batch_numbers(batches: list[Any]) -> list[int]:
    return list(index_order.batch_numbers(batches))


KINDS: dict[str, list[Any]] = {
    "indices": list(range(N)),
    "negative": list(range(-N, 0)),
    "large": [2**70 + one for one in range(N)],
    "pairs": [(0, one) for one in range(N)],
    "words": [f"file {one}" for one in range(N)],
    "numpy": list(numpy.arange(N)),
    "tensors": list(torch.arange(N)),
    "mixed": [one if one % 3 else f"file {one}" for one in range(N)],
    "objects": [Pair("a", one) for one in range(N)],
}


def by_fours(items: list[Any], kind: str) -> list[Any]:
    batches = [items[first : first + 4] for first in range(0, len(items), 4)]
    batches[7] = batches[7][:0]
    return [torch.stack(batch) if kind == "tensors" and batch else batch for batch in batches]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_digest_is_the_same_on_any_number_of_processes_and_resumed(kind: str, whole: bool) -> None:
    items = by_fours(KINDS[kind], kind) if whole else KINDS[kind]
    alone = digests(items, 1, whole=whole)
    assert len(set(alone.values())) == len(alone)
    for world in (2, 3, 12):
        for skip in (0, 6):
            found = digests(items, world, whole=whole, skip=skip)
            assert found == {place: alone[place] for place in found}, (world, skip)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_order_that_differs_from_some_place_on_has_another_digest_there(kind: str, whole: bool) -> None:
    items = KINDS[kind]
    alone = digests(by_fours(items, kind) if whole else items, 1, whole=whole)
    for differs in range(N - 16, N - 4, 5):
        other = [*items[:differs], *reversed(items[differs:])]
        found = digests(by_fours(other, kind) if whole else other, 1, whole=whole)
        first = (differs // 4 if whole else differs) + 1
        wrong = [place for place in alone if (alone[place] == found[place]) != (place < first)]
        assert wrong == [] or (whole and wrong == [N // 4])  # the ends of a batch may be what they were


def test_of_a_known_order_samples_and_the_newest_items_are_compared() -> None:
    order = torch.arange(1000)
    known = KnownOrder(order, 0).digest(1000)
    assert KnownOrder(range(1000), 0).digest(1000) == known
    for place in (0, 31, 930, 985, 999):
        other = order.clone()
        other[place] = 1000
        assert KnownOrder(other, 0).digest(1000) != known, place


@pytest.mark.grid(1)
@pytest.mark.parametrize("world", [1, 3, 40])
@pytest.mark.parametrize("asked", [1, 7, 1000])
def test_a_digest_does_not_depend_on_when_it_is_asked_for(world: int, asked: int) -> None:
    """Those of many rounds are made in a row; a list of indices may be changed once it is handed out."""
    numbers = torch.randperm(world * 200 * 3, generator=torch.Generator().manual_seed(0)).tolist()
    batches = [numbers[first : first + 3] for first in range(0, len(numbers), 3)]
    known, alone = KnownOrder(torch.tensor(numbers), 0), digests(batches, 1, whole=True)
    for whole in (False, True):
        each = world if whole else world * 3
        expected = {n * each: alone[n * each] if whole else known.digest(n * each) for n in range(201)}
        order = LazyOrder(map(list, batches) if whole else iter(numbers), 0, each, whole=whole)
        dealt = chain.from_iterable(order.deal(DataRank(0, world), rows=3, ending=Ending.REPEAT))
        for place, batch in enumerate(dealt, start=1):
            if place % asked == 0:
                assert order.digest(place * each) == expected[place * each]
            batch.reverse()
        assert {place: order.digest(place) for place in expected} == expected


@pytest.mark.parametrize("whole", [False, True])
def test_an_order_that_is_read_keeps_a_few_bytes_a_round(whole: bool) -> None:
    """Its digest is known at each place of the pass, also when the pass is long."""
    rounds = 5_000
    items: Any = ([number] * 8 for number in range(2 * rounds)) if whole else iter(range(16 * rounds))
    order = LazyOrder(items, 0, 2 if whole else 16, whole=whole)
    dealt = chain.from_iterable(order.deal(DataRank(0, 2), rows=8, ending=Ending.DROP))
    tracemalloc.start()
    try:
        assert sum(1 for _ in dealt) == rounds
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held <= 12 * rounds


def test_what_can_be_iterated_once_is_not_used_up() -> None:
    def generated() -> Iterator[int]:
        yield from range(3)

    for once in (iter([1, 2]), generated(), map(abs, [1])):
        before = batch_numbers([once])
        assert batch_numbers([once]) == before
        assert len(list(once)) > 0


IN_A_PROCESS = """
from accel_data.sharding.index_order import batch_numbers, sample_numbers

class Plain:
    pass

print(sample_numbers(["b", ("a", 1), b"c", 2.5, None, 3, Plain(), (Plain(),), iter([1])]))
print(batch_numbers([["b", "a"], [1, 2], [], "words", (x for x in "ab"), lambda: 0]))
"""


def test_numbers_do_not_depend_on_the_process() -> None:
    found = outputs(IN_A_PROCESS)
    assert len(found) == 1, found


def test_what_has_no_words_of_its_own_is_told_by_its_kind() -> None:
    assert numbers([Plain()]) == numbers([Plain()]) != numbers([object()])
    assert numbers([Pair("a", 1)]) == numbers([Pair("a", 1)]) != numbers([Pair("a", 2)])
    assert numbers([torch.tensor(5), numpy.int64(5), True]) == numbers([5, 5, 1])
