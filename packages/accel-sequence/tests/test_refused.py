"""What cannot be divided is refused in words, before anything is computed on a part of a sequence by mistake."""

from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from importlib.util import find_spec
from typing import Any, cast

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
        r"attention_mask of Tensor .*\[2, 1, 6, 6\]\): expected \(2, 6\), .* position_ids that begin at 0",
    ),
    "a mask that is no tensor": ({"attention_mask": object()}, "attention_mask of object None"),
    "a mask of another name": ({"own_mask": torch.ones(2, 6, 6)}, "give what it is made of, such as padding"),
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
    with pytest.raises(CannotDivide, match=words):
        divide({"input_ids": TOKENS, **more}, ranks(SequenceLayout(1, 2)), takes_positions=True, reached=True)


def test_a_batch_without_tokens_is_refused() -> None:
    with pytest.raises(CannotDivide, match=r"no argument of the forward \(labels\) is a tensor of rows and tokens"):
        divide({"labels": TOKENS}, ranks(SequenceLayout(1, 2)), takes_positions=True, reached=True)


def test_norms_over_tokens_are_refused() -> None:
    with pytest.raises(
        CannotDivide, match=r"has \[.BatchNorm1d.\], whose statistics in training would be those of a part"
    ):
        reach(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_refused(in_place: bool) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    if in_place:
        model[0].compile(backend="eager")
    with pytest.raises(CannotDivide, match=r"prepare the model without torch.compile and"):
        reach(model if in_place else cast("nn.Module", torch.compile(model, backend="eager")))


class Own(nn.Module):
    """A model that attends, and asks for positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)

    def forward(self, tokens: Tensor, cache: object = None) -> Tensor:
        hidden: Tensor = self.embedding(tokens) + positions(tokens)[..., None] / 10
        heads = hidden.view(*hidden.shape[:2], 2, 4).transpose(1, 2)
        return attention(heads, heads, heads).sum(1)


class Then(Own):
    """A model that does something more with what its tokens have become."""

    def __init__(self, more: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.more = more

    def forward(self, tokens: Tensor, targets: object = None) -> Tensor:
        more: Tensor = self.more(super().forward(tokens))
        return more


class Nameless(nn.Module):
    def forward(self, *tokens: Tensor) -> Tensor:
        return tokens[0]


def shifted(x: Tensor, share: float) -> Tensor:
    """Hidden states to which those of the token before are added."""
    return x + share * functional.pad(x, (0, 0, 1, -1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layer(x)[0]
        return hidden


class TrainingLoss(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean() if self.training else x


class Zero(nn.Module):
    """A layer that has not learned anything yet, and returns nothing of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.0 * x


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.convolution(x.mT).mT
        return mixed


OTHER = "Then computes for parts of a sequence what is not that of the whole, first in "
FORWARDS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "no positions": (lambda: Then(lambda x: x + torch.arange(x.shape[1])[:, None]), {}, OTHER + "what it returns"),
    "a loss of its own": (
        lambda: Then(Tensor.mean),
        {"targets": TOKENS},
        OTHER + r"what it returns, of shape \(\) for \(\): .* accel_sequence.loss",
    ),
    "a loss of a part's labels": (
        lambda: Then(lambda x: functional.cross_entropy(x.mT, TOKENS % 4)),
        {},
        "Then fails on its first 6 tokens, or on a part of these: .* accel_sequence.part",
    ),
    "a loss of all labels": (
        lambda: Then(lambda x: functional.cross_entropy(x.flatten(0, 1), TOKENS.flatten() % 4)),
        {},
        "Then fails on its first 6 tokens, or on a part of these: .* accel_sequence.part",
    ),
    "a pooled output": (lambda: Then(lambda x: x[:, 0]), {}, OTHER + r"what it returns, of shape \(2, 4\)"),
    "an output of another length": (lambda: Then(lambda x: x[:, 1:]), {}, OTHER + r"what it returns, of shape"),
    "an attention of torch": (
        lambda: Then(lambda x: functional.scaled_dot_product_attention(x, x, x)),
        {},
        OTHER + "what it returns.* accel_sequence.attention",
    ),
    "an attention of its own": (lambda: Then(lambda x: (x @ x.mT).softmax(-1) @ x), {}, OTHER),
    "a convolution": (lambda: Then(Convolved()), {}, OTHER + "more, of shape"),
    "a recurrence": (lambda: Then(Recurrent()), {}, OTHER + "more.layer"),
    "a layer of torch": (
        lambda: Then(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
        {},
        OTHER + "more",
    ),
    "a shift": (lambda: Then(lambda x: shifted(x, 0.5)), {}, OTHER),
    "a shift by a thousandth": (lambda: Then(lambda x: shifted(x, 1e-3)), {}, OTHER),
    "a mean over tokens": (lambda: Then(lambda x: x - x.mean(1, keepdim=True)), {}, OTHER),
    "a sum over tokens": (lambda: Then(lambda x: x.cumsum(1)), {}, OTHER),
    "a mix before a layer that gives zeros": (lambda: Then(nn.Sequential(Convolved(), Zero())), {}, OTHER + "more.0"),
    "an output in which nobody finds tensors": (lambda: Then(lambda x: {x}), {}, "Then returns no tensors, or others"),
    "a loss in training alone": (
        lambda: Then(TrainingLoss()),
        {},
        "Then returns no tensors, or others than it did for",
    ),
    "a cache": (Own, {"cache": object()}, "cache: earlier tokens are not divided"),
}


@pytest.mark.parametrize("layout", [SequenceLayout(2, 1), SequenceLayout(1, 2)], ids=str)
@pytest.mark.parametrize(("make", "more", "words"), FORWARDS.values(), ids=FORWARDS)
def test_a_model_that_goes_around_is_refused(
    make: Callable[[], nn.Module], more: dict[str, Any], words: str, layout: SequenceLayout
) -> None:
    made = make()

    def job(ours: Ranks) -> None:
        model = deepcopy(made)
        forward = DividedForward(model.forward, model, ours, reach(model))
        with pytest.raises(CannotDivide, match=words):
            forward(TOKENS, **more)

    simulate(layout, job)


def test_arguments_without_names_are_refused() -> None:
    model = Nameless()
    with pytest.raises(CannotDivide, match=r"takes arguments without names \(\*tokens\)"):
        DividedForward(model.forward, model, ranks(SequenceLayout(1, 2)), reach(model))(TOKENS)


def test_unlike_batches_are_refused_on_every_rank() -> None:
    def job(ours: Ranks) -> None:
        model = Own()
        forward = DividedForward(model.forward, model, ours, reach(model))
        with pytest.raises(CannotDivide, match="the ranks that share sequences were given unlike batches for Own"):
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


def loss_of_a_script(logits: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    return nn.functional.cross_entropy(logits.view(-1, vocab_size), labels.view(-1))


class Wrapper(nn.Module):
    """A model with a second one of another attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first = tiny("LlamaForCausalLM")
        self.second = tiny("LlamaForCausalLM", attn_implementation="flex_attention")


def with_loss(model: Any, loss: Callable[..., Tensor]) -> Any:
    model.loss_function = loss
    return model


LABELS = {"labels": TOKENS.masked_fill(TOKENS > 2, -100)}
FIRST = "computes for parts of a sequence what is not that of the whole, first in "
MODELS: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "outputs of a whole sequence": (lambda: tiny("LlamaForSequenceClassification", pad_token_id=0), {}, FIRST + "what"),
    "another kernel": (
        lambda: tiny("LlamaForCausalLM", attn_implementation="flex_attention"),
        {},
        "attention of LlamaForCausalLM is 'flex_attention', .* attn_implementation='sdpa'",
    ),
    "a second model in a wrapper": (Wrapper, {}, "is 'flex_attention'"),
    "a loss of routers": (
        lambda: tiny("MixtralForCausalLM", num_local_experts=2, num_key_value_heads=2, output_router_logits=True),
        LABELS,
        FIRST + "what it returns",
    ),
    "layers of another kind": (
        lambda: tiny("Lfm2ForCausalLM", num_key_value_heads=2, layer_types=["conv"]),
        {},
        FIRST + "model.layers.0.conv",
    ),
    "an output of one token": (lambda: tiny("BertModel"), {}, FIRST + "what it returns"),
    "positions counted from padding": (
        lambda: tiny("RobertaForCausalLM", is_decoder=True),
        {},
        FIRST + "roberta.embed",
    ),
    "another sequence": (
        lambda: tiny("BertModel", is_decoder=True, add_cross_attention=True),
        {"encoder_hidden_states": torch.ones(2, 6, 8)},
        "encoder_hidden_states: only self-attention",
    ),
    "positions that turn by the length": (
        lambda: tiny("LlamaForCausalLM", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        {},
        "turns its positions by the length of what it is given",
    ),
    "a loss that does not take what it is told": (
        lambda: with_loss(tiny("LlamaForCausalLM"), loss_of_a_script),
        LABELS,
        "LlamaForCausalLM fails on its first 6 tokens, or .* loss_of_a_script.. got .*'num_items_in_batch'",
    ),
    "a loss that does not heed what it is told": (
        lambda: with_loss(tiny("LlamaForCausalLM"), lambda logits, labels, vocab_size, **_: logits.mean()),
        LABELS,
        FIRST + r"what it returns, of shape \(\)",
    ),
}


@with_transformers
@pytest.mark.parametrize(("make", "more", "words"), MODELS.values(), ids=MODELS)
def test_a_model_of_transformers_that_has_no_parts_is_refused(
    make: Callable[[], Any], more: dict[str, Any], words: str
) -> None:
    made = make()

    def job(ours: Ranks) -> None:
        model = deepcopy(made)
        with pytest.raises(CannotDivide, match=words):
            DividedForward(model.forward, model, ours, reach(model))(input_ids=TOKENS, **more)

    simulate(SequenceLayout(2, 1), job)


@with_transformers
def test_windows_that_only_the_mask_has_are_refused() -> None:
    def job(ours: Ranks) -> None:
        torch.manual_seed(0)
        more = {
            "num_experts": 4,
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 2,
            "max_window_layers": 1,
        }
        model = tiny("Qwen2MoeForCausalLM", layer_types=["sliding_attention"], **more)
        forward = DividedForward(model.forward, model, ours, reach(model))
        with pytest.raises(CannotDivide, match=r"attends with window None, causal=True, .* its mask has window 2"):
            forward(input_ids=TOKENS)

    simulate(SequenceLayout(2, 1), job)


def test_lengths_of_part_and_whole_alike_are_not_guessed() -> None:
    division = Division(ranks(SequenceLayout(1, 2)), 6)
    remember(division)
    assert torch.equal(accel_sequence.part(TOKENS), TOKENS[:, :3])
    with pytest.raises(CannotDivide, match=r"a tensor of shape \(2, 5\) has no part of sequences of 6"):
        accel_sequence.part(TOKENS[:, 1:])
    assert torch.equal(positions(TOKENS[:, :3]), torch.arange(3)[None])
    with pytest.raises(
        CannotDivide, match=r"instead of labels\[:, 1:\] with shifted=True, whole labels with shifted=F"
    ):
        accel_sequence.loss(torch.randn(2, 3, 12), TOKENS[:, 1:], shifted=True)
    assert torch.equal(positions(TOKENS), torch.arange(6)[None])
    supersede()
    assert accel_sequence.whole(TOKENS) is TOKENS
    with pytest.raises(CannotDivide, match="whole: 3 positions may be those of a part"):
        accel_sequence.whole(TOKENS[:, :3])
    assert torch.equal(accel_sequence.part(TOKENS), TOKENS[:, :3]), "a forward of a teacher"
    with torch.no_grad(), pytest.raises(CannotDivide, match="a forward without gradients came after one that waits"):
        accel_sequence.part(TOKENS)
    division.spent = True
    assert accel_sequence.part(TOKENS) is TOKENS
    assert accel_sequence.total(TOKENS) is TOKENS


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
    forward = DividedForward(model.forward, model, ranks(SequenceLayout(1, 2)), [])
    model.forward = around = wraps(forward)(lambda *args: forward(*args))  # type: ignore[assignment]
    Sequences(Run.__new__(Run)).divide(model)
    assert model.forward is around
