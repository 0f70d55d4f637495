"""Any nested data comes back from every operation as its documented meaning says, told here by plain torch."""

import random
from collections import OrderedDict, UserDict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from accel_comm import Reduction, Transport
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import broadcast, gather, pad_across_processes, reduce
from accel_ops.flat import Flat
from accel_testing import MakePool
from hypothesis import given, settings
from hypothesis import strategies as st
from named_pairs import Pair
from suite.soak import Cases

MANY = settings(derandomize=True, deadline=None, max_examples=40)
DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
          torch.complex64]  # fmt: skip
HOWS: list[Reduction] = ["sum", "mean", "max", "min"]
LARGE = 140_000
OBJECTS: list[Any] = ["text", "", 7, None, b"bytes", 1.5, True, frozenset({2}), ("a", "b"), [], ["a", None], [[1], []]]


class Trees:
    """Random trees: of each, one for every rank, of the same structure.

    Along the dims in `ragged` the ranks may differ in length; None: along all.
    """

    def __init__(
        self,
        rng: random.Random,
        size: int,
        *,
        ragged: Sequence[int] | None = (),
        objects: bool = False,
        without: object = None,
    ) -> None:
        self.rng, self.size, self.ragged, self.objects = rng, size, ragged, objects
        self.dtypes = [dtype for dtype in DTYPES if dtype != without]

    def tree(self, depth: int = 3) -> list[Any]:
        """One tree for each rank."""
        rng = self.rng
        if depth == 0 or rng.randrange(4) == 0:
            return self._object() if self.objects and rng.randrange(3) == 0 else self._tensor()
        if depth == 3 and rng.randrange(8) == 0:
            return self._in(list, [self._tensor() for _ in range(60)])
        kind = rng.randrange(6)
        inner = [self.tree(depth - 1) for _ in range(2 if kind == 0 else rng.randrange(4))]
        if kind == 0 and self.objects:
            inner[0] = self._tensor()
        makers: list[Callable[..., Any]] = [lambda items: Pair(*items), tuple, dict, OrderedDict, UserDict, list]
        return self._in(makers[kind], inner, keyed=kind in (2, 3, 4))

    def _in(self, make: Callable[..., Any], inner: list[list[Any]], keyed: bool = False) -> list[Any]:
        rows = [[one[rank] for one in inner] for rank in range(self.size)]
        return [make({f"k{place}": item for place, item in enumerate(row)} if keyed else row) for row in rows]

    def _object(self) -> list[Any]:
        if self.rng.randrange(4) == 0:
            return [None] * self.size
        return [self.rng.choice(OBJECTS) for _ in range(self.size)]

    def _tensor(self) -> list[torch.Tensor]:
        rng = self.rng
        dtype = rng.choice(self.dtypes)
        shape = [rng.choice([0, 1, 2, 3, 5]) for _ in range(rng.randrange(4))]
        if shape and rng.randrange(12) == 0:
            shape = [max(LARGE // dtype.itemsize // 2, 1), 3][: len(shape)]
            shape[0] += LARGE // dtype.itemsize
        layout, grad = rng.randrange(5), rng.randrange(4) == 0
        found = []
        for _ in range(self.size):
            mine = list(shape)
            for dim in range(len(shape)) if self.ragged is None else self.ragged:
                if dim < len(shape) and rng.randrange(3) == 0:
                    mine[dim] = rng.randrange(shape[dim] + 1)
            found.append(_filled(mine, dtype, layout, rng.randrange(1 << 30)))
            found[-1].requires_grad_(grad and found[-1].is_floating_point())
        return found


def _filled(shape: list[int], dtype: torch.dtype, layout: int, seed: int) -> torch.Tensor:
    """Small whole numbers, which every dtype has and sums without error; contiguous or not, or conjugate."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(shape: list[int]) -> torch.Tensor:
        found = torch.randint(0, 8, shape, generator=generator)
        if dtype == torch.bool:
            return found > 3
        return torch.complex(found.float(), found.float() * 2 - 3) if dtype.is_complex else found.to(dtype)

    if layout == 4:
        return numbers(shape).conj()
    if not shape or layout == 0:
        return numbers(shape)
    if layout == 1:
        return numbers(shape[::-1]).permute(*reversed(range(len(shape))))
    if layout == 2:
        return numbers([*shape[:-1], 2 * shape[-1]])[..., ::2]
    return numbers([shape[0] + 2, *shape[1:]])[1:-1]


def has_tensor(value: Any) -> bool:
    """Whether there is a tensor in it."""
    if isinstance(value, torch.Tensor):
        return True
    items = value.values() if hasattr(value, "values") else value if isinstance(value, list | tuple) else ()
    return any(has_tensor(item) for item in items)


def combined(values: list[Any], tensors: Callable[[list[torch.Tensor]], Any], objects: bool = False) -> Any:
    """The tree that has in the place of each leaf what `tensors` makes of those of all ranks."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        return tensors(values)
    if objects and isinstance(first, list | tuple) and not has_tensor(first):
        alike = all(isinstance(value, list | tuple) for value in values)
        if not alike:
            return values
        items = [item for value in values for item in value]
        return tuple(items) if all(isinstance(value, tuple) for value in values) else items
    if isinstance(first, list | tuple):
        inner = [combined(list(items), tensors, objects) for items in zip(*values, strict=True)]
        return Pair(*inner) if isinstance(first, Pair) else type(first)(inner)
    if hasattr(first, "keys"):
        return type(first)({key: combined([value[key] for value in values], tensors, objects) for key in first})
    return None if all(value is None for value in values) else values


def joined(ranks: list[torch.Tensor]) -> torch.Tensor:
    """Along dim 0; values without dims as a vector."""
    return torch.cat(ranks).detach() if ranks[0].ndim else torch.stack(ranks).detach()


def reduced(how: Reduction, scale: float) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """Element by element; a mean of whole numbers is a float."""

    def whole(ranks: list[torch.Tensor]) -> torch.Tensor:
        stack = torch.stack([rank.detach() for rank in ranks])
        exact = stack.to(torch.complex128 if stack.is_complex() else torch.float64)
        found = exact.sum(0) if how in ("sum", "mean") else exact.amax(0) if how == "max" else exact.amin(0)
        found = found.to(stack.dtype)
        found = found / len(ranks) if how == "mean" else found
        return found if scale == 1.0 else found * scale

    return whole


def padded_of(rank: int, dim: int, fill: float, first: bool) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """As long along `dim` as the longest."""

    def longest(ranks: list[torch.Tensor]) -> torch.Tensor:
        mine = ranks[rank].detach()
        if not -mine.ndim <= dim < mine.ndim:
            return mine
        shape = list(mine.shape)
        shape[dim] = max(one.shape[dim] for one in ranks)
        found = torch.full(shape, fill, dtype=mine.dtype)
        start = shape[dim] - mine.shape[dim] if first else 0
        found.narrow(dim, start, mine.shape[dim]).copy_(mine)
        return found

    return longest


def same(found: Any, expected: Any, path: str = "data") -> None:
    """Passes when types, order of keys, dtypes, shapes and every number are equal."""
    assert type(found) is type(expected), f"{path}: {type(found)}, expected {type(expected)}"
    if isinstance(found, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), path
        assert torch.equal(found, expected), f"{path}: {found}, expected {expected}"
    elif isinstance(found, list | tuple):
        assert len(found) == len(expected), path
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(one, other, f"{path}[{place}]")
    elif hasattr(found, "keys"):
        assert list(found) == list(expected), path
        for key in found:
            same(found[key], expected[key], f"{path}[{key!r}]")
    else:
        assert found == expected, path


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in it."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if hasattr(value, "values") else value if isinstance(value, list | tuple) else ()
    return [one for item in items for one in tensors_of(item)]


def own(found: Any, given: Any) -> None:
    """Passes when the results are the caller's own: no memory of what was given, and no gradient."""
    theirs = {one.untyped_storage().data_ptr() for one in tensors_of(given) if one.numel()}
    for one in tensors_of(found):
        assert not one.requires_grad
        assert one.numel() == 0 or one.untyped_storage().data_ptr() not in theirs


def gathered(transport: Transport, ranks: list[Any]) -> Any:
    found = gather(ranks[transport.rank], transport)
    own(found, ranks[transport.rank])
    return found


def broadcast_from(transport: Transport, ranks: list[Any], source: int) -> Any:
    found = broadcast(ranks[transport.rank], transport, source=source)
    own(found, ranks[transport.rank])
    return found


def reduced_to(transport: Transport, ranks: list[Any], how: Reduction, scale: float) -> Any:
    found = reduce(ranks[transport.rank], transport, how=how, scale=scale)
    own(found, ranks[transport.rank])
    return found


def padded(transport: Transport, ranks: list[Any], dim: int, fill: float, first: bool) -> Any:
    return pad_across_processes(ranks[transport.rank], transport, dim=dim, pad_index=fill, pad_first=first)


Case = tuple[Callable[..., Any], list[Any], tuple[Any, ...], list[Any]]


def a_gather(rng: random.Random, size: int) -> Case:
    ranks = Trees(rng, size, ragged=(0,), objects=True).tree()
    return gathered, ranks, (), [combined(ranks, joined, objects=True)] * size


def a_broadcast(rng: random.Random, size: int) -> Case:
    ranks, source = Trees(rng, size).tree(), rng.randrange(size)
    return broadcast_from, ranks, (source,), [combined(ranks, lambda all_of: all_of[source].detach())] * size


def a_reduce(rng: random.Random, size: int) -> Case:
    how, scale = rng.choice(HOWS), rng.choice([1.0, 0.5, 2.0])
    # max and min refuse complex numbers, and a mean of bools is in test_reduce.py
    odd = torch.bool if how == "mean" else torch.complex64 if how in ("max", "min") else None
    ranks = Trees(rng, size, without=odd).tree()
    return reduced_to, ranks, (how, scale), [combined(ranks, reduced(how, scale))] * size


def a_pad(rng: random.Random, size: int) -> Case:
    ranks = Trees(rng, size, ragged=None).tree()
    dim, fill, first = rng.randrange(-2, 3), rng.choice([0, 1]), rng.random() < 0.5
    most = max((leaf.ndim for leaf in Flat(ranks[0], "pad").leaves), default=0)
    dim = dim if most < 2 or -most <= dim < most else 0  # one that no tensor has is refused
    expected = [combined(ranks, padded_of(rank, dim, fill, first)) for rank in range(size)]
    return padded, ranks, (dim, fill, first), expected


KINDS = [a_gather, a_broadcast, a_reduce, a_pad]
Loopback = Callable[..., list[Any]]


@pytest.mark.parametrize("kind", KINDS)
@MANY
@given(rng=st.randoms(use_true_random=False), size=st.integers(2, 3))
def test_any_tree_comes_back_as_the_meaning_of_the_operation_says(
    loopback: Loopback, kind: Callable[..., Case], rng: random.Random, size: int
) -> None:
    """A4, feature rows S55, S78 and S80: containers, dtypes, order, ragged or not, small and large."""
    function, ranks, args, expected = kind(rng, size)
    for found, one in zip(loopback(size, function, ranks, *args), expected, strict=True):
        same(found, one)


def on_gloo(kind: Callable[..., Case], seeds: range) -> list[tuple[int, Any]]:
    """The results on this rank, and of the first that is not right the seed and why."""
    transport = TorchDist()
    wrong = []
    for seed in seeds:
        function, ranks, args, expected = kind(random.Random(seed), transport.size)
        found = function(transport, ranks, *args)
        try:
            same(found, expected[transport.rank])
        except AssertionError as error:
            wrong.append((seed, str(error)))
    return wrong


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.soak
def test_any_tree_travels_through_gloo_as_it_does_between_threads(
    world: MakePool, loopback: Loopback, cases: Cases, size: int
) -> None:
    """A4: 15 random trees, 2,000 in a soak, for every operation, the same on both."""
    group, seeds = world(size), cases(15, 2000)
    for kind in KINDS:
        assert group.run(on_gloo, kind, seeds, timeout_s=60 + len(seeds)) == [[]] * size, kind.__name__
        for seed in seeds[::10]:
            function, ranks, args, expected = kind(random.Random(seed), size)
            for found, one in zip(loopback(size, function, ranks, *args), expected, strict=True):
                same(found, one)


@MANY
@given(rng=st.randoms(use_true_random=False))
def test_alone_any_tree_is_its_own_result(rng: random.Random) -> None:
    """A4: gather and broadcast give what they were given; a sum, an extreme and padding have nothing to add."""
    (data,) = Trees(rng, 1, objects=True).tree()
    assert gather(data, Single()) is data
    (numbers,) = Trees(rng, 1).tree()
    assert broadcast(numbers, Single()) is numbers
    same(pad_across_processes(numbers, Single(), dim=0, pad_index=9), numbers)
    _, ranks, (how, scale), (expected,) = a_reduce(rng, 1)
    same(reduce(ranks[0], Single(), how=how, scale=scale), expected)
