"""Documents that are packed into one row train as documents in rows of their own."""

from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from accel_sequence.divided_forward import DividedForward
from accel_sequence.division import Ranks
from accel_sequence.layout import SequenceLayout
from accel_sequence.models import reach
from long_sequences.models import LongCase, loss_in_its_dtype, make_model
from long_sequences.simulated_peers import simulate
from torch import Tensor

LENGTHS = (5, 9, 3)
TOKENS = torch.randint(0, 64, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(6))


def gradients(model: Any, **batch: Tensor) -> list[Tensor]:
    """The loss and the gradients."""
    model.zero_grad()
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def _documents() -> list[Tensor]:
    ends = torch.tensor(LENGTHS).cumsum(0).tolist()
    return [TOKENS[:, end - length : end] for length, end in zip(LENGTHS, ends, strict=True)]


def packed(how: str) -> dict[str, Tensor]:
    labels = TOKENS.clone()
    starts = torch.tensor([0, *LENGTHS]).cumsum(0)
    labels[:, starts[:-1]] = -100
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    more = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts} if how == "starts" else {}
    return {"input_ids": TOKENS, "labels": labels, "position_ids": positions, **more}


# transformers 5.24 itself does not tell the documents of gpt-oss apart, unless by flash attention
@pytest.mark.skipif(not find_spec("transformers"), reason="a library is not installed")
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("how", ["positions", "starts"])
@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_packed_documents_are_apart(name: str, how: str, sizes: tuple[int, int]) -> None:
    torch.manual_seed(2)
    model = make_model(LongCase(name)).double()
    model.loss_function = loss_in_its_dtype
    alone = [gradients(model, input_ids=one, labels=one) for one in _documents()]
    weights = [(length - 1) / (sum(LENGTHS) - len(LENGTHS)) for length in LENGTHS]
    wanted = [sum(weight * one for weight, one in zip(weights, of, strict=True)) for of in zip(*alone, strict=True)]

    def job(ranks: Ranks) -> list[Tensor]:
        ours = deepcopy(model)
        ours.forward = DividedForward(ours.forward, ours, ranks, reach(ours))
        loss, *mine = gradients(ours, **packed(how))
        return [loss, *(ranks.all.sum(one) / ranks.all.size for one in mine)]

    for found in simulate(SequenceLayout(*sizes), job)[0]:
        # norms of transformers round to float32 on the way
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
