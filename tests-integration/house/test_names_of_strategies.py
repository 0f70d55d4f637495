"""A strategy's name stands in its own file, and where it is chosen."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import FunctionType

import pytest
from accel_parallel import STRATEGIES, Steps, Strategy
from repository import all_sources, import_name, module_name, projects, tree_of, where

#: beside the file of the strategy itself: what chooses, and groups of options that have such a name
NAMES_A_STRATEGY = {
    "accel_parallel.choice": "chooses the strategy",
    "accel.handlers": "the field of DistributedDataParallelKwargs",
    "accel_names.testing.skips": "the decorator require_fsdp2 of tests for Accelerate",
    "accel_launch.config.option_entries": "the flags --use_deepspeed and --deepspeed_config",
}
#: a branch on what a strategy is
ASKS_WHICH = re.compile(r"engine is (not )?None|strategy\.shards\b")
MAX_METHODS = 12
#: the packages of one strategy, and its name there
PROJECT_OF_STRATEGY = {
    import_name(package): name
    for package, project in projects().items()
    for name in project.get("entry-points", {}).get("accel.strategies", {})
}


def test_a_strategy_is_named_by_itself_and_by_what_chooses_it() -> None:
    """Other code asks the strategy, so that a strategy of another distribution is served alike."""
    assert sum(len(names_of_strategies(tree_of(path))) for path in all_sources()) > 0
    naming = {module_name(path) for path in all_sources() if names_of_strategies(tree_of(path)) - own_strategies(path)}
    assert naming == NAMES_A_STRATEGY.keys()


def test_a_name_of_a_strategy_is_found() -> None:
    """Whether it is compared or a key; a word in a sentence is none."""
    assert names_of_strategies(ast.parse("if name == 'ddp': pass\nways = {'fsdp2': 1}")) == {"ddp", "fsdp2"}
    assert not names_of_strategies(ast.parse("raise ValueError('use ddp')"))


def test_nobody_asks_which_strategy_there_is() -> None:
    """What differs is a method of the strategy, or of its steps."""
    asking = [where(path) for path in all_sources() if ASKS_WHICH.search(path.read_text())]
    assert asking == []


@pytest.mark.parametrize("text", ["if strategy.shards:", "if self._engine is None:", "x.engine is not None"])
def test_a_question_which_strategy_there_is_is_found(text: str) -> None:
    assert ASKS_WHICH.search(text)


@pytest.mark.parametrize("seam", [Strategy, Steps])
def test_a_seam_stays_narrow(seam: type) -> None:
    held = {name: one for name, one in vars(seam).items() if not name.startswith("_")}
    methods = [name for name, one in held.items() if isinstance(one, FunctionType | classmethod)]
    assert 1 < len(methods) <= MAX_METHODS, methods


def names_of_strategies(tree: ast.Module) -> set[str]:
    """The constants of a module that are names of strategies."""
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return set(STRATEGIES.names()) & {value for value in constants if isinstance(value, str)}


def own_strategies(path: Path) -> set[str]:
    """The strategy whose file this is, or to whose package it belongs; none for other files."""
    if path.parent.name == "strategies":
        return {path.stem}
    own = PROJECT_OF_STRATEGY.get(module_name(path).split(".")[0])
    return {own} if own is not None else set()
