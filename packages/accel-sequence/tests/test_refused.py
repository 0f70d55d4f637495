"""What cannot be divided is refused in words, before anything is computed on a part of a sequence by mistake."""

from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from importlib.util import find_spec
from typing import Any

import accel_sequence
import pytest
import torch
from accel_sequence import CannotDivide, attention, positions
from accel_sequence.batch import divide
from accel_sequence.divided_forward import DividedForward
from accel_sequence.division import Division, Ranks, remember, supersede
from accel_sequence.layout import SequenceLayout
from accel_sequence.models import reach
from accel_sequence.sequences import Sequences
from accel_state import Run
from long_sequences.simulated_peers import SimulatedPeers, simulate
from torch import Tensor, nn
from torch.nn import functional

with_transformers = pytest.mark.skipif(not find_spec("transformers"), reason="a library is not installed")
TOKENS = torch.arange(12).reshape(2, 6)


def ranks(layout: SequenceLayout) -> Ranks:
    """The first of ranks that never meet."""

    class Alone(SimulatedPeers):
        def __init__(self) -> None:
            self.rank, self.size = 0, layout.size

    return Ranks(layout, Alone())


BATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "a mask of queries and keys": (
        {"attention_mask": torch.ones(2, 1, 6, 6)},
        r"attention_mask of shape \(2, 1, 6, 6\): expected \(2, 6\), .* position_ids that begin at 0",
    ),
    "a mask that is no tensor": ({"attention_mask": object()}, "attention_mask of class object"),
    "a mask of another name": ({"bias_mask": torch.ones(2, 6)}, "of masks only attention_mask is known"),
    "a bias for each pair": ({"bias": torch.ones(2, 6, 6)}, r"bias of shape \(2, 6, 6\): expected"),
    "a tensor of another length": ({"extra": torch.ones(2, 5)}, r"extra of shape \(2, 5\): expected \(2, 6, ...\)"),
    "positions in three dims": ({"position_ids": torch.ones(3, 2, 6)}, r"position_ids of shape \(3, 2, 6\)"),
    "starts that do not fit": ({"cu_seqlens": torch.tensor([0, 4])}, "starts of documents .* for 2 rows"),
    "weights of attention": ({"output_attentions": True}, "output_attentions: weights of attention are in no one"),
    "the loss of routers": ({"output_router_logits": True}, "output_router_logits: the loss of routers"),
    "some logits": ({"logits_to_keep": 1}, "logits_to_keep: a rank has a part of the logits"),
    "another sequence": ({"encoder_hidden_states": torch.ones(2, 4, 3)}, "only self-attention is divided"),
}


@pytest.mark.parametrize(("more", "words"), BATCHES.values(), ids=BATCHES)
def test_a_batch_that_has_no_parts_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotDivide, match=r"(?s)a batch of 2 x 6 tokens .* over 2 ranks:\n.*" + words):
        divide({"input_ids": TOKENS, **more}, ranks(SequenceLayout(1, 2)), takes_positions=True)


def test_a_batch_without_tokens_is_refused() -> None:
    with pytest.raises(CannotDivide, match=r"no argument of the forward \(labels\) is a tensor of rows and tokens"):
        divide({"labels": TOKENS}, ranks(SequenceLayout(1, 2)), takes_positions=True)


def test_all_problems_of_a_batch_are_told_at_once() -> None:
    together = {name: value for more, _ in BATCHES.values() for name, value in more.items()}
    with pytest.raises(CannotDivide) as raised:
        divide({"input_ids": TOKENS, **together}, ranks(SequenceLayout(1, 2)), takes_positions=True)
    assert str(raised.value).count("\n") == len(together)


@pytest.mark.parametrize("module", [nn.LSTM(2, 2), nn.Conv1d(2, 2, 3), nn.TransformerEncoderLayer(4, 2)])
def test_layers_that_mix_tokens_in_another_way_are_refused(module: nn.Module) -> None:
    with pytest.raises(CannotDivide, match="which look at other positions by themselves"):
        reach(nn.Sequential(nn.Linear(2, 2), module))


class Own(nn.Module):
    """A model that attends, or does not, and asks for positions, or does not."""

    def __init__(self, *, attends: bool = True, asks: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 4)
        self.attends, self.asks = attends, asks

    def forward(self, tokens: Tensor, cache: object = None) -> Tensor:
        hidden: Tensor = self.embedding(tokens)
        if self.asks:
            hidden = hidden + positions(tokens)[..., None]
        heads = hidden[:, None]
        return attention(heads, heads, heads)[:, 0] if self.attends else hidden


class Then(Own):
    """A model that does something more with what its tokens have become."""

    def __init__(self, more: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.more = more

    def forward(self, tokens: Tensor, targets: object = None) -> Tensor:
        return self.more(super().forward(tokens))


class Nameless(nn.Module):
    def forward(self, *tokens: Tensor) -> Tensor:
        return tokens[0]


FORWARDS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "no attention": (lambda: Own(attends=False), {}, "computed 0 of 1 layers .* call accel_sequence.attention"),
    "no positions": (lambda: Own(asks=False), {}, "takes no position_ids and has not asked for positions"),
    "a loss of its own": (
        lambda: Then(Tensor.mean),
        {"targets": TOKENS},
        r"Then returns \[\(\)\], .* accel_sequence.loss",
    ),
    "a pooled output": (lambda: Then(lambda x: x[:, 0]), {}, r"Then returns \[\(2, 4\)\], where \(rows, "),
    "an attention of torch": (
        lambda: Then(lambda x: functional.scaled_dot_product_attention(x, x, x)),
        {},
        "Then computes attention by scaled_dot_product_attention",
    ),
    "an attention of its own": (
        lambda: Then(lambda x: (x[:, None] @ x[:, None].mT).softmax(-1) @ x[:, None]),
        {},
        "Then computes attention by softmax over the 4 tokens of a part",
    ),
    "a cache": (Own, {"cache": object()}, "cache: earlier tokens are not divided"),
}


@pytest.mark.parametrize(("make", "more", "words"), FORWARDS.values(), ids=FORWARDS)
def test_a_model_that_goes_around_is_refused(make: Callable[[], nn.Module], more: dict[str, Any], words: str) -> None:
    def job(ours: Ranks) -> None:
        model = make()
        forward = DividedForward(model.forward, model, ours, reach(model))
        with pytest.raises(CannotDivide, match=words):
            forward(TOKENS, **more)

    simulate(SequenceLayout(2, 1), job)


def test_arguments_without_names_are_refused() -> None:
    model = Nameless()
    with pytest.raises(CannotDivide, match=r"takes arguments without names \(\*tokens\)"):
        DividedForward(model.forward, model, ranks(SequenceLayout(1, 2)), reach(model))(TOKENS)


def test_unlike_batches_are_refused_on_every_rank() -> None:
    def job(ours: Ranks) -> None:
        model = Own()
        forward = DividedForward(model.forward, model, ours, reach(model))
        with pytest.raises(CannotDivide, match="the 2 ranks that share sequences were given unlike batches for Own"):
            forward(TOKENS + ours.all.rank)

    simulate(SequenceLayout(2, 1), job)


def test_logits_of_another_length_are_refused() -> None:
    with pytest.raises(CannotDivide, match="logits have 3 positions and labels 6, and are not of the newest"):
        accel_sequence.loss(torch.randn(2, 3, 5), TOKENS % 5, shifted=True)


def tiny(name: str, **more: Any) -> Any:
    """A model of Transformers with one layer."""
    import transformers

    small = {"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2} | more
    family = name.removesuffix("Model").split("For")[0]
    config = getattr(transformers, f"{family}Config")(intermediate_size=8, **small)
    return getattr(transformers, name)(config)


def with_layers(model: Any, kind: str) -> Any:
    model.config.layer_types = [kind]
    return model


def loss_of_a_script(logits: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    return nn.functional.cross_entropy(logits.view(-1, vocab_size), labels.view(-1))


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "outputs of a whole sequence": (lambda: tiny("LlamaForSequenceClassification"), "outputs are not of one token"),
    "another kernel": (
        lambda: tiny("LlamaForCausalLM", attn_implementation="flex_attention"),
        "its attention is 'flex_attention', .* attn_implementation='sdpa'",
    ),
    "a loss of routers": (
        lambda: tiny("MixtralForCausalLM", num_local_experts=2, output_router_logits=True),
        "output_router_logits=True: the loss of routers",
    ),
    "layers of another kind": (
        lambda: with_layers(tiny("LlamaForCausalLM"), "linear_attention"),
        "it has layers of linear_attention",
    ),
    "an output of one token": (lambda: tiny("BertModel"), "pooler takes one token for all; .* add_pooling_layer=False"),
    "positions counted from padding": (
        lambda: tiny("RobertaForCausalLM", is_decoder=True),
        "embeddings counts positions from its padding",
    ),
    "a second model in a wrapper": (
        lambda: nn.ModuleList(
            [tiny("LlamaForCausalLM"), tiny("LlamaForCausalLM", attn_implementation="flex_attention")]
        ),
        "its attention is 'flex_attention'",
    ),
    "an encoder and a decoder": (
        lambda: tiny("BertModel", is_decoder=True, add_cross_attention=True),
        "it has an encoder and a decoder",
    ),
}


@with_transformers
@pytest.mark.parametrize(("make", "words"), MODELS.values(), ids=MODELS)
def test_a_model_of_transformers_that_has_no_parts_is_refused(make: Callable[[], Any], words: str) -> None:
    model = make()
    before = [one.config._attn_implementation for one in model.modules() if hasattr(one, "config")]
    with pytest.raises(CannotDivide, match=r"(?s)cannot be divided along the sequence:\n.*" + words):
        reach(model)
    after = [one.config._attn_implementation for one in model.modules() if hasattr(one, "config")]
    assert after == before, "it is as it was"


@with_transformers
def test_a_loss_that_cannot_be_told_of_parts_is_refused() -> None:
    model = tiny("LlamaForCausalLM")
    model.loss_function = loss_of_a_script
    with pytest.raises(CannotDivide, match="loss_of_a_script has no num_items_in_batch and no shift_labels"):
        reach(model)


@with_transformers
def test_windows_that_only_the_mask_has_are_refused() -> None:
    def job(ours: Ranks) -> None:
        more = {"num_experts": 2, "use_sliding_window": True, "sliding_window": 2, "max_window_layers": 1}
        model = tiny("Qwen2MoeForCausalLM", layer_types=["sliding_attention"], **more)
        forward = DividedForward(model.forward, model, ours, reach(model))
        with pytest.raises(CannotDivide, match="attends with window None, causal=True, and its mask has window 2"):
            forward(input_ids=TOKENS)

    simulate(SequenceLayout(2, 1), job)


def test_lengths_of_part_and_whole_alike_are_not_guessed() -> None:
    division = Division(ranks(SequenceLayout(1, 2)), 6)
    remember(division)
    supersede()
    assert accel_sequence.whole(TOKENS) is TOKENS
    with pytest.raises(CannotDivide, match="whole: 3 positions may be those of a part"):
        accel_sequence.whole(TOKENS[:, :3])


@with_transformers
def test_losses_of_classified_tokens_are_those_of_whole_sequences() -> None:
    torch.manual_seed(1)
    model = tiny("LlamaForTokenClassification", num_labels=3).eval()
    labels = (TOKENS % 3).masked_fill(TOKENS % 5 == 0, -100)
    wanted = model(input_ids=TOKENS, labels=labels).loss

    def job(ours: Ranks) -> Tensor:
        mine = deepcopy(model)
        found: Tensor = DividedForward(mine.forward, mine, ours, reach(mine))(input_ids=TOKENS, labels=labels).loss
        return found.detach()

    for found in simulate(SequenceLayout(2, 1), job)[0]:
        torch.testing.assert_close(found, wanted.detach())


def test_a_prepared_forward_is_divided_once() -> None:
    """Also within what the precision or a recomputation puts around it."""
    model = Own()
    forward = DividedForward(model.forward, model, ranks(SequenceLayout(1, 2)), 0)
    model.forward = around = wraps(forward)(lambda *args: forward(*args))  # type: ignore[assignment]
    Sequences(Run.__new__(Run)).divide(model)
    assert model.forward is around
