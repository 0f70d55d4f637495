"""What a rank keeps for its backward is its part of what one process keeps, and it sends what the page says."""

from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from accel_sequence.divided_forward import DividedForward
from accel_sequence.division import Ranks
from accel_sequence.layout import SequenceLayout
from accel_sequence.models import reach
from long_sequences.models import LongCase, make_model
from long_sequences.simulated_peers import simulate
from torch import Tensor

pytestmark = pytest.mark.skipif(not find_spec("transformers"), reason="a library is not installed")
LENGTH, ROWS, LAYERS, WIDTH = 512, 2, 2, 16


def kept(model: Any, tokens: Tensor) -> tuple[float, int]:
    """The loss, and the bytes that a forward keeps for its backward, without parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            held[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    return loss.item(), sum(x.untyped_storage().nbytes() for x in held.values())


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1), (2, 2)], ids=str)
def test_four_ranks_keep_less_than_a_third_each(sizes: tuple[int, int]) -> None:
    """A2: at most 30 % of what one process keeps."""
    model = make_model(LongCase("gpt2", length=LENGTH))
    tokens = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 64
    wanted, alone = kept(model, tokens)

    def job(ranks: Ranks) -> tuple[float, int]:
        ours = deepcopy(model)
        ours.forward = DividedForward(ours.forward, ours, ranks, reach(ours))
        return kept(ours, tokens)

    found, _ = simulate(SequenceLayout(*sizes), job)
    for loss, part in found:
        assert abs(loss - wanted) < 1e-5
        assert part <= 0.3 * alone, f"{part / alone:.3f} of {alone} bytes"


@pytest.mark.parametrize(("ring", "heads"), [(1, 2), (1, 4), (2, 1), (4, 1)])
def test_a_step_sends_what_the_page_derives(ring: int, heads: int) -> None:
    """A2: at most 5 % more than attention needs, for all that a forward and its backward exchange."""
    model = make_model(LongCase("gpt2", length=LENGTH))
    tokens = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 64
    size = ring * heads

    def job(ranks: Ranks) -> None:
        ours = deepcopy(model)
        ours.forward = DividedForward(ours.forward, ours, ranks, reach(ours))
        ours(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()

    _, boards = simulate(SequenceLayout(ring, heads), job)
    part = ROWS * (LENGTH // size) * WIDTH
    derived = LAYERS * (3 * 2 * part * (ring - 1) if ring > 1 else 8 * part * (heads - 1) // heads)
    for sent in map(sum, zip(*(board.sent for board in boards.values() if board.size == size), strict=True)):
        assert derived <= sent <= 1.05 * derived
