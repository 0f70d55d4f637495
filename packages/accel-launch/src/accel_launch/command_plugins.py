"""Commands that other packages bring: an entry point names the module of each.

The module has `run(tokens)`, which gives the exit code, and `FLAGS` for completion: the words that each option takes,
None if it takes no value, and nothing if it takes any.
"""

from types import ModuleType

GROUP = "accel.commands"
#: the commands of other packages of this project, and the extra of package accel that brings each
EXTRAS = {"verify": "verify", "estimate-memory": "big"}


def load_command(name: str) -> ModuleType | None:
    """The module of a command; None if no installed package has it."""
    from importlib.metadata import entry_points

    point = next(iter(entry_points(group=GROUP, name=name)), None)
    module: ModuleType | None = None if point is None else point.load()
    return module
