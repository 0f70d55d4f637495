"""Attention over parts of sequences is that of one process, with its gradients."""

from typing import NamedTuple

import pytest
import torch
from accel_sequence.attention import attention
from accel_sequence.division import CannotDivide, Division, Ranks, dividing
from accel_sequence.layout import SequenceLayout
from long_sequences.simulated_peers import simulate
from torch import Tensor

LAYOUTS = [
    SequenceLayout(1, 2),
    SequenceLayout(1, 4),
    SequenceLayout(2, 1),
    SequenceLayout(4, 1),
    SequenceLayout(2, 2),
    SequenceLayout(3, 1),
]
ROWS, WIDTH = 2, 4


class Case(NamedTuple):
    """What is attended to, and by how many heads."""

    heads: int = 4
    key_heads: int = 4
    length: int = 24
    causal: bool = True
    window: int | None = None
    documents: bool = False
    padded: bool = False
    sinks: bool = False


CASES = {
    "causal": Case(),
    "full": Case(causal=False),
    "window": Case(window=5),
    "window to both sides": Case(window=5, causal=False),
    "documents": Case(documents=True),
    "full documents": Case(documents=True, causal=False),
    "padding": Case(padded=True),
    "full padding": Case(padded=True, causal=False),
    "grouped heads": Case(heads=8, key_heads=4),
    "fewer key heads than ranks": Case(heads=8, key_heads=1),
    "key heads that do not divide": Case(heads=12, key_heads=3),
    "sinks": Case(sinks=True),
    "sinks and window and grouped heads": Case(sinks=True, window=7, key_heads=2),
    "a length that does not divide": Case(length=21),
    "a full length that does not divide": Case(length=19, causal=False),
    "documents of a length that does not divide": Case(length=19, causal=False, documents=True),
}


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    gradient: Tensor
    real: Tensor | None
    documents: Tensor | None


def inputs(case: Case) -> Inputs:
    random = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    q, gradient = (draw(ROWS, case.heads, case.length, WIDTH) for _ in range(2))
    k, v = (draw(ROWS, case.key_heads, case.length, WIDTH) for _ in range(2))
    real = torch.ones(ROWS, case.length, dtype=torch.bool)
    real[0, -5:] = False
    documents = torch.tensor([[0] * 7 + [1] * 3 + [2] * (case.length - 10), [0] * (case.length - 1) + [1]])
    return Inputs(
        q,
        k,
        v,
        draw(case.heads) if case.sinks else None,
        gradient,
        real if case.padded else None,
        documents if case.documents else None,
    )


def on_one_process(case: Case, given: Inputs) -> tuple[Tensor, ...]:
    """The result and its gradients, by the definition of attention."""
    q, k, v = (x.clone().requires_grad_() for x in given[:3])
    sinks = None if given.sinks is None else given.sinks.clone().requires_grad_()
    groups = case.heads // case.key_heads
    scores = q @ k.repeat_interleave(groups, 1).transpose(-1, -2) * WIDTH**-0.5
    distance = torch.arange(case.length)[:, None] - torch.arange(case.length)[None]
    seen = torch.ones(ROWS, 1, case.length, case.length, dtype=torch.bool)
    if case.causal:
        seen = seen & (distance >= 0)
    if case.window is not None:
        seen = seen & (distance.abs() < case.window)
    if given.real is not None:
        seen = seen & given.real[:, None, None]
    if given.documents is not None:
        seen = seen & (given.documents[:, None, :, None] == given.documents[:, None, None])
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:-1], 1)], -1)
    out = scores.softmax(-1)[..., : case.length] @ v.repeat_interleave(groups, 1)
    (out * given.gradient).sum().backward()
    found = [out.detach(), q.grad, k.grad, v.grad, None if sinks is None else sinks.grad]
    return tuple(x for x in found if x is not None)


def on_ranks(case: Case, layout: SequenceLayout, given: Inputs) -> tuple[Tensor, ...]:
    """The same, of the parts of the ranks, put together."""

    def job(ranks: Ranks) -> list[Tensor]:
        division = Division(ranks, case.length)
        division.real = None if given.real is None else division.pad(given.real, 1, False)
        division.documents = None if given.documents is None else division.pad(given.documents, 1, -1)
        q, k, v = (division.local(x, 2).requires_grad_() for x in given[:3])
        sinks = None if given.sinks is None else given.sinks.clone().requires_grad_()
        with dividing(division):
            out = attention(q, k, v, is_causal=case.causal, window=case.window, sinks=sinks)
        (out * division.local(given.gradient, 2)).sum().backward()  # type: ignore[no-untyped-call]
        parts = [out, *(x.grad for x in (q, k, v) if x.grad is not None)]
        whole = [division.whole(x, 2) for x in parts]
        if sinks is not None and sinks.grad is not None:
            whole.append(ranks.all.sum(sinks.grad))
        return whole

    results, _ = simulate(layout, job)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])
    return tuple(results[0])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_parts_attend_as_one_process_does(case: Case, layout: SequenceLayout) -> None:
    if case.heads % layout.heads:
        pytest.skip("heads that do not divide are refused")
    given = inputs(case)
    torch.testing.assert_close(on_ranks(case, layout, given), on_one_process(case, given), rtol=1e-11, atol=1e-11)


def test_small_pieces_attend_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_sequence.block.PIECE", 3)
    for name in ("causal", "window", "full documents", "sinks"):
        given = inputs(CASES[name])
        found = on_ranks(CASES[name], SequenceLayout(2, 1), given)
        torch.testing.assert_close(found, on_one_process(CASES[name], given), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [SequenceLayout(1, 2), SequenceLayout(2, 1)], ids=str)
def test_half_precision_attends_within_its_digits(layout: SequenceLayout, dtype: torch.dtype) -> None:
    case = CASES["causal"]
    given = inputs(case)
    half = given._replace(**{name: getattr(given, name).to(dtype) for name in ("q", "k", "v", "gradient")})
    found = on_ranks(case, layout, half)
    assert {x.dtype for x in found} == {dtype}
    for x, wanted in zip(found, on_one_process(case, given), strict=True):
        torch.testing.assert_close(x.double(), wanted, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize(
    ("layout", "heads", "dropout", "words"),
    [
        (SequenceLayout(1, 3), 4, 0.0, r"sp_size=3 divides heads, and attention has 4"),
        (SequenceLayout(2, 1), 4, 0.1, r"drops 0.1 of its weights, and cp_size=2"),
    ],
)
def test_what_cannot_be_divided_is_refused(layout: SequenceLayout, heads: int, dropout: float, words: str) -> None:
    def job(ranks: Ranks) -> str:
        x = torch.randn(1, heads, 12 // layout.size, WIDTH)
        with pytest.raises(CannotDivide, match=words), dividing(Division(ranks, 12)):
            attention(x, x, x, is_causal=True, dropout_p=dropout)
        return "refused"

    assert set(simulate(layout, job)[0]) == {"refused"}


def test_other_lengths_of_keys_are_refused() -> None:
    x = torch.randn(1, 2, 4, WIDTH)
    with pytest.raises(CannotDivide, match="attention of 4 queries to 2 keys"):
        attention(x, x[:, :, :2], x[:, :, :2])


@pytest.mark.parametrize("size", [2, 4])
def test_heads_send_four_tensors_a_direction(size: int) -> None:
    """A2: batch x length / k x width x (k - 1) / k elements each, where key heads are as many."""
    case, layout = CASES["causal"], SequenceLayout(1, size)

    def job(ranks: Ranks) -> None:
        division = Division(ranks, case.length)
        q, k, v = (division.local(x, 2).requires_grad_() for x in inputs(case)[:3])
        with dividing(division):
            attention(q, k, v, is_causal=True).sum().backward()  # type: ignore[no-untyped-call]

    _, boards = simulate(layout, job)
    tensor = ROWS * (case.length // size) * case.heads * WIDTH * (size - 1) // size
    assert boards["heads"].sent == [2 * 4 * tensor] * size


@pytest.mark.parametrize("size", [2, 4])
def test_a_ring_sends_keys_and_values_and_their_gradients(size: int) -> None:
    """A2: keys and values k - 1 times forward; they and their gradients as often backward."""
    case, layout = CASES["grouped heads"], SequenceLayout(size, 1)

    def job(ranks: Ranks) -> None:
        division = Division(ranks, case.length)
        q, k, v = (division.local(x, 2).requires_grad_() for x in inputs(case)[:3])
        with dividing(division):
            attention(q, k, v, is_causal=True).sum().backward()  # type: ignore[no-untyped-call]

    _, boards = simulate(layout, job)
    both = 2 * ROWS * (case.length // size) * case.key_heads * WIDTH
    assert boards["ring"].sent == [3 * both * (size - 1)] * size
