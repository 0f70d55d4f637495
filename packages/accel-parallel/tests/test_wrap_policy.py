"""Which modules are gathered one at a time."""

import pytest
from accel_parallel.wrap_policy import UnknownBlocks, large_blocks, like_blocks, transformer_blocks, without_ties
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


class Decoder(nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(4, 10, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


class Told(Decoder):
    _no_split_modules = ("Linear",)


def test_blocks_are_the_members_of_a_list_of_like_modules() -> None:
    model = Decoder()
    assert transformer_blocks(model) == like_blocks(model) == list(model.blocks)


def test_a_model_may_be_such_a_list_itself() -> None:
    blocks = [Block(), Block()]
    assert like_blocks(nn.Sequential(*blocks)) == like_blocks(nn.Sequential(nn.Sequential(*blocks))) == blocks
    assert like_blocks(nn.Sequential(Block(), nn.Tanh())) == []


def test_containers_in_a_list_are_no_blocks() -> None:
    lists = [nn.ModuleList([Block(), Block()]) for _ in range(2)]
    pairs = [nn.ModuleDict({"rise": Block(), "layers": layers}) for layers in lists]
    assert like_blocks(nn.ModuleList(pairs)) == [*lists[0], *lists[1]]


def test_a_model_that_says_what_is_not_to_be_split_is_believed() -> None:
    assert {type(block) for block in transformer_blocks(Told())} == {nn.Linear}
    assert len(transformer_blocks(Told())) == 7


def test_named_classes_win_and_unknown_names_are_refused() -> None:
    model = Told()
    assert transformer_blocks(model, ["Block"]) == list(model.blocks)
    with pytest.raises(UnknownBlocks, match=r"no module of the class Blok; it has Block, Embedding, Linear, Told"):
        transformer_blocks(model, ["Blok"])


def test_blocks_of_a_size_are_the_smallest_that_reach_it() -> None:
    model = Decoder()
    one = sum(parameter.numel() for parameter in model.blocks[0].parameters())
    assert large_blocks(model, one) == list(model.blocks)
    assert large_blocks(model, one + 1) == []  # a list of modules is never called, so nothing would gather it
    assert len(large_blocks(model, 60)) == 6


def test_a_block_that_shares_a_weight_with_the_rest_is_left_to_the_rest() -> None:
    model = Decoder(tied=True)
    blocks = [model.embedding, *model.blocks]
    assert without_ties(model, blocks) == list(model.blocks)
    assert without_ties(Decoder(), []) == []
