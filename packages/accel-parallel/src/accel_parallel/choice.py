"""Choose the strategy of a script: the one that it names, or the one that its options and processes call for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_state import Run

from accel_parallel.strategies import STRATEGIES
from accel_parallel.strategy import Strategy
from accel_parallel.strategy_options import Asked

#: the name that leaves the choice
AUTO = "auto"
#: of one process, of whole models, of sharded models, and of DeepSpeed, whose options scripts give by other names
SINGLE, WHOLE, SHARDED, DEEPSPEED = "single", "ddp", "fsdp2", "deepspeed"
#: how the strategies are installed that come with packages of their own
INSTALLS = {DEEPSPEED: "in a clone of accel, pip install './packages/accel-deepspeed[deepspeed]'"}


def problems_of(strategy: object, options: object = None) -> list[str]:
    """Return what is wrong with the strategy that a script names, and with options for it, in words."""
    names, given = STRATEGIES.names(), f"strategy_options of class {type(options).__name__}"
    if options is not None and strategy in names:
        kind = STRATEGIES.load(str(strategy)).options_type
        if kind is None or not isinstance(options, kind):
            return [f"{given}: strategy={strategy!r} takes {'none' if kind is None else kind.__name__}"]
    elif options is not None:
        return [f"{given}: name the strategy that takes them, as in strategy={WHOLE!r}"]
    if not isinstance(strategy, str) or strategy in (AUTO, *names):
        return []
    if strategy in INSTALLS:
        return [f"strategy={strategy!r} comes with a package that is not installed: {INSTALLS[strategy]}"]
    return [f"strategy={strategy!r}: expected one of {', '.join((AUTO, *names))}, or a Strategy"]


def options_from_words(name: str, words: Mapping[str, str]) -> Any:
    """Return the options of a strategy for the entries of a config file.

    Raises:
        ValueError: Names are not known, or the strategy is not installed, or takes none.
    """
    for problem in problems_of(name):
        raise ValueError(problem)
    from_words = getattr(STRATEGIES.load(name).options_type, "from_words", None)
    if from_words is None:
        raise ValueError(f"strategy={name!r}, as it is installed, takes no options, found {', '.join(words)}")
    return from_words(words)


def make_strategy(name: str, options: Mapping[str, Any], asked: Asked, run: Run) -> Strategy:
    """Return the strategy that a script asks for.

    Args:
        name: Its name, or "auto".
        options: Options by the names of the strategies that take them.
        asked: What the script asks for besides.
        run: The run, which may have a mesh that divides models.
    """
    chosen = name
    if name == AUTO:
        divided = run.mesh.shard > 1 or run.mesh.tensor > 1
        chosen = next((given for given in options if given != WHOLE), SHARDED if divided else WHOLE)
    if run.topology.world_size == 1 and chosen in (SHARDED, WHOLE) and name != WHOLE:
        chosen = SINGLE  # nothing to share
    return STRATEGIES.load(chosen).made(options.get(chosen), asked)
