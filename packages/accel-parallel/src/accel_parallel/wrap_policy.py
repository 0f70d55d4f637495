"""Find which modules of a model are gathered, recomputed or compiled one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn


class UnknownBlocks(ValueError):
    """An error of a model that has no module of a class that was asked for."""


def transformer_blocks(model: nn.Module, class_names: Sequence[str] | None = None) -> list[nn.Module]:
    """Return the blocks of a transformer.

    Args:
        model: The model.
        class_names: Classes of the blocks. By default the classes that the model itself says are not to be split
            (`_no_split_modules`, as Transformers have it), or else the members of its lists of like modules.

    Raises:
        UnknownBlocks: The model has no module of a class that is named.
    """
    if class_names:
        here = {type(module).__name__ for module in model.modules()}
        unknown = [name for name in class_names if name not in here]
        if unknown:
            raise UnknownBlocks(
                f"{type(model).__name__} has no module of the class {', '.join(unknown)}; it has"
                f" {', '.join(sorted(here - {'ModuleList', 'Sequential', 'ModuleDict'}))}"
            )
        return _of_classes(model, class_names)
    told = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return _of_classes(model, told) or like_blocks(model)


def large_blocks(model: nn.Module, min_parameters: int) -> list[nn.Module]:
    """Return modules with at least so many parameters of which no smaller module inside is one already."""
    blocks: list[nn.Module] = []

    def left(module: nn.Module, *, root: bool) -> int:
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        size = own + sum(left(child, root=False) for child in module.children())
        if root or size < min_parameters or not _is_called(module):
            return size
        blocks.append(module)
        return 0

    left(model, root=True)
    return blocks


def like_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules of each list that has several of one class, lists inside of such modules left out.

    The model itself may be such a list, an `nn.Sequential` say. Containers are no blocks, as nobody calls them.
    """
    if isinstance(model, nn.ModuleList | nn.Sequential) and len(set(map(type, model))) == 1 < len(model):
        members = list(model)
        if _is_called(members[0]):
            return members
    return [block for child in model.children() for block in like_blocks(child)]


def without_ties(model: nn.Module, blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the blocks that share no parameter with the rest of the model, as a shared one is gathered with both."""
    chosen = list(blocks)
    owners: dict[int, set[int]] = {}
    inside = {id(module): number for number, block in enumerate(chosen) for module in block.modules()}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(inside.get(id(module), -1))
    shared = {number for numbers in owners.values() if len(numbers) > 1 for number in numbers}
    return [block for number, block in enumerate(chosen) if number not in shared]


def outermost(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the blocks that are inside of no other block."""
    inside = {id(module) for block in blocks for module in block.modules() if module is not block}
    return [block for block in blocks if id(block) not in inside]


def _of_classes(model: nn.Module, class_names: Iterable[str]) -> list[nn.Module]:
    wanted = set(class_names)
    return [module for module in model.modules() if module is not model and type(module).__name__ in wanted]


def _is_called(module: nn.Module) -> bool:
    """Return whether a module computes by itself, unlike a list of modules, which nothing would gather."""
    return not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict)
