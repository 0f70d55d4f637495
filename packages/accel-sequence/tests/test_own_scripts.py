"""Models and losses of scripts compute for parts what they compute for the whole on one process."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import accel_sequence
import pytest
import torch
from accel_sequence import attention, part, positions, total
from accel_sequence.divided_forward import DividedForward
from accel_sequence.division import Ranks
from accel_sequence.layout import SequenceLayout
from accel_sequence.models import reach
from long_sequences.own_model import LENGTH, VOCABULARY, Own
from long_sequences.simulated_peers import simulate
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

LAYOUTS = [SequenceLayout(1, 2), SequenceLayout(2, 1), SequenceLayout(2, 2)]
random = torch.Generator().manual_seed(7)
TOKENS = torch.randint(0, VOCABULARY, (2, LENGTH), generator=random)
DOCUMENTS = torch.arange(LENGTH)[None].expand(2, -1) // 5
REAL = torch.arange(LENGTH) < torch.tensor([[LENGTH], [9]])


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget forwards of other tests, which live on in cycles."""
    monkeypatch.setattr("accel_sequence.division._NEWEST", [])


class Marked(nn.Module):
    """A model that is given padding and documents, and arguments whose names imply nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.head = nn.Embedding(VOCABULARY, 8), nn.Embedding(LENGTH, 8), nn.Linear(8, 16)

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor,
        documents: Tensor | None = None,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        places = positions(tokens) if position_ids is None else position_ids
        hidden = self.tokens(tokens) + self.places(places)
        heads = hidden.view(*hidden.shape[:2], 2, 4).transpose(1, 2)
        for causal in (True, False):
            more = {"documents": documents, "real": padding_mask}
            heads = heads + attention(heads, heads, heads, is_causal=causal, **more)  # type: ignore[arg-type]
        return accel_sequence.loss(self.head(heads.transpose(1, 2).flatten(2)), labels, shifted=False)


def results(model: Any, loss_of: Callable[[Any], Tensor]) -> list[Tensor]:
    """A loss and the gradients."""
    model.zero_grad()
    loss = loss_of(model)
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(one.grad.clone() for one in model.parameters())]


def check(made: nn.Module, layout: SequenceLayout, loss_of: Callable[[Any], Tensor]) -> None:
    """Compare parts with one process."""
    wanted = results(made, loss_of)

    def job(ranks: Ranks) -> list[Tensor]:
        model = deepcopy(made)
        model.forward = DividedForward(model.forward, model, ranks, reach(model))
        loss, *gradients = results(model, loss_of)
        return [loss, *(ranks.all.sum(one) / ranks.all.size for one in gradients)]

    for found in simulate(layout, job)[0]:
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


MARKS: dict[str, dict[str, Tensor]] = {
    "documents": {"documents": DOCUMENTS},
    "padding": {"padding_mask": REAL},
    "both, of one row": {"documents": DOCUMENTS[:1], "padding_mask": REAL.long()},
    "names of Transformers": {"attention_mask": REAL.long(), "position_ids": torch.arange(LENGTH)[None] % 6},
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS)
def test_what_a_model_gives_to_attention_counts_and_names_imply_nothing(
    marks: dict[str, Tensor], layout: SequenceLayout
) -> None:
    torch.manual_seed(1)
    check(Marked().double(), layout, lambda model: model(TOKENS, labels=TOKENS, **marks))


class Learner(Own):
    """A model that computes a loss with label smoothing and a z-loss inside."""

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = super().forward(tokens)
        if labels is None:
            return logits
        z_losses = (logits.logsumexp(-1).square() * part(labels != -100)).sum()
        losses = cross_entropy(logits.mT, part(labels, fill=-100), label_smoothing=0.1, reduction="sum")
        return total(losses + 0.1 * z_losses) / (labels != -100).sum()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_model_may_compute_a_loss_of_its_own(layout: SequenceLayout) -> None:
    torch.manual_seed(3)
    labels = TOKENS.masked_fill(TOKENS > 9, -100)
    check(Learner().double(), layout, lambda model: model(TOKENS, labels=labels))


def test_evaluation_joins_what_has_tokens_and_leaves_the_rest() -> None:
    """Also where the width of an output is the length of a part."""

    class Both(Own):
        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return super().forward(tokens), self.places.weight[:2, :7]

    made = Both()

    def job(ranks: Ranks) -> tuple[Tensor, Tensor]:
        model: Any = deepcopy(made)
        with torch.no_grad():
            found: tuple[Tensor, Tensor] = DividedForward(model.forward, model, ranks, [])(TOKENS)
        return found

    with torch.no_grad():
        wanted = made(TOKENS)
    for found in simulate(SequenceLayout(1, 2), job)[0]:
        torch.testing.assert_close(found, wanted)


def test_the_proof_leaves_modes_alone() -> None:
    class Dropped(Own):
        def forward(self, tokens: Tensor) -> Tensor:
            modes.append(self.training)
            return torch.dropout(super().forward(tokens), 0.5, self.training)

    modes: list[bool] = []
    made = Dropped().train()
    made.head.eval()

    def job(ranks: Ranks) -> bool:
        model: Any = deepcopy(made)
        with torch.no_grad():
            DividedForward(model.forward, model, ranks, [])(TOKENS)
        return bool(model.training and not model.head.training)

    assert simulate(SequenceLayout(1, 2), job)[0] == [True, True]
    assert modes.count(False) == 4
