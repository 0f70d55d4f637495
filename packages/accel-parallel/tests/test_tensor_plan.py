"""Plans of tensor parallelism: which modules they name, and why they are refused. No process is needed."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_parallel.stages.tensor_plan import TensorPlanError, styles_of
from tiny_blocks import Block
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel


class Model(nn.Module):
    tp_plan: Any = None

    def __init__(self, *, tied: bool = False, vocabulary: int = 10) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 4)
        self.blocks = nn.ModuleList([Block(4), Block(4)])
        self.head = nn.Linear(4, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise", "blocks.*.norm": "sequence_parallel"}


def kinds(styles: dict[str, ParallelStyle]) -> dict[str, type]:
    return {path: type(style) for path, style in styles.items()}


def test_a_star_stands_for_one_step_of_a_path() -> None:
    up_and_down = {"up": ColwiseParallel, "down": RowwiseParallel, "norm": SequenceParallel}
    expected = {f"blocks.{block}.{name}": kind for name, kind in up_and_down.items() for block in range(2)}
    assert kinds(styles_of(Model(), 2, PLAN)) == expected


def test_styles_of_torch_are_taken_as_they_are() -> None:
    style = RowwiseParallel()
    assert styles_of(Model(), 2, {"blocks.0.down": style}) == {"blocks.0.down": style}


def test_the_models_own_plan_is_taken_and_may_name_absent_modules() -> None:
    model = Model()
    model.tp_plan = {"head": "colwise_gather_output", "blocks.*.experts": "packed_colwise", "embedding": "replicate"}
    assert kinds(styles_of(model, 2)) == {"head": ColwiseParallel}


def test_what_is_tied_to_a_divided_weight_is_divided_like_it() -> None:
    styles = styles_of(Model(tied=True), 2, {"head": "colwise_gather_output"})
    assert kinds(styles) == {"head": ColwiseParallel, "embedding": RowwiseParallel}


class Adapted(nn.Module):
    """A layer as peft makes it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, layer.out_features, bias=False)})


def test_adapters_are_divided_with_their_layers() -> None:
    model = Model()
    model.blocks[0].up, model.blocks[0].down = Adapted(nn.Linear(4, 8)), Adapted(nn.Linear(8, 4))
    assert kinds(styles_of(model, 2, {"blocks.0.up": "colwise", "blocks.0.down": "rowwise"})) == {
        "blocks.0.up.base_layer": ColwiseParallel,
        "blocks.0.up.lora_B.default": ColwiseParallel,
        "blocks.0.down.base_layer": RowwiseParallel,
        "blocks.0.down.lora_A.default": RowwiseParallel,
    }


def test_the_plan_of_a_model_inside_of_another_is_found() -> None:
    model = Model()
    model.tp_plan = {"head": "colwise"}
    assert kinds(styles_of(nn.ModuleDict({"base": model}), 2)) == {"base.head": ColwiseParallel}


def wrong_heads() -> nn.Module:
    model = Model()
    model.config = SimpleNamespace(num_attention_heads=4, num_key_value_heads=1)  # type: ignore[assignment]
    return model


class Rows(nn.Module):
    """A norm with a row of weights for each of four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2))


def norms_of_heads() -> nn.Module:
    model = Model()
    model.config = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2)  # type: ignore[assignment]
    model.blocks[0].rows = Rows()
    return model


CONVOLUTION = nn.Sequential(nn.Conv1d(2, 2, 1))
WRONG = [
    (Model(), None, "Model has none of its own"),
    (Model(), {}, "Model has none of its own"),
    (Model(), {"layers.*.up": "colwise"}, r"layers\.\*\.up: names no module; the first modules are embedding, blocks"),
    (Model(), {"blocks": "colwise"}, "blocks: a ModuleList cannot be divided"),
    (Model(), {"blocks.*.up": "column"}, "the style 'column' is not known here; known are colwise, "),
    (Model(vocabulary=9), {"head": "colwise"}, "head: dim 0 of its weight has 9 entries, no multiple of 2"),
    (Model(vocabulary=9), {"embedding": "rowwise"}, "embedding: dim 0 of its weight has 9 entries"),
    (Model(tied=True), {"head": "rowwise", "embedding": "rowwise"}, "embedding.weight and head.weight are one weight"),
    (CONVOLUTION, {"0": "rowwise"}, "0: a Conv1d cannot be divided, only Linear and Embedding can"),
    (wrong_heads(), PLAN, "num_key_value_heads=1 is not a multiple of 2"),
    (norms_of_heads(), PLAN, r"blocks\.0\.rows: its weight has a row for each head"),
]


@pytest.mark.parametrize(("model", "plan", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_a_plan_that_cannot_be_is_refused_in_words(model: nn.Module, plan: Any, words: str) -> None:
    with pytest.raises(TensorPlanError, match=words):
        styles_of(model, 2, plan)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(TensorPlanError) as caught:
        styles_of(Model(vocabulary=9), 2, {"up": "colwise", "head": "colwise", "blocks.*.up": "column"})
    assert len(str(caught.value).splitlines()) == 4
