"""Compare on a few tokens what a model computes for its parts with what it computes for whole sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from accel_sequence.batch import LABELS, MARKS, STARTS
from accel_sequence.division import CannotDivide, Division

#: tokens for each block of a rank
TOKENS = 4
#: the share of its norm by which a tensor of a part may differ
TOLERANCE = 1e-4
#: the same where numbers have few digits
TOLERANCE_IN_HALF = 0.03
_OUTPUTS = "what it returns"


def cut(arguments: Mapping[str, Any], division: Division, *, reached: bool) -> dict[str, Any]:
    """Return the first tokens of a batch, all with labels.

    Args:
        arguments: The arguments for whole sequences, by name.
        division: Their division.
        reached: Whether names of arguments tell of padding and documents, of which there are none then.
    """
    length = min(division.length, TOKENS * division.ranks.layout.multiple)

    def short(name: str, x: Any) -> Any:
        if reached and name in MARKS:
            return None
        if not isinstance(x, torch.Tensor):
            return x
        x = x[:, :length] if x.shape[1:2] == (division.length,) else x
        return x.clamp(max=length) if name in STARTS else x.clamp(min=0) if name in LABELS else x

    return {name: short(name, x) for name, x in arguments.items()}


def prove(model: nn.Module, whole: Callable[[], Any], parts: Callable[[], Any], division: Division) -> list[bool]:
    """Compare what a model computes for parts with what it computes for the whole, in each of its modules.

    Args:
        model: The model, which is in evaluation meanwhile.
        whole: Run its forward on whole sequences.
        parts: Run it on the part of this rank.
        division: The division of these sequences.

    Returns:
        For each tensor that the forward returns, whether it has an entry for each token.

    Raises:
        CannotDivide: They differ, on any rank.

    Collective:
        Every rank that shares the sequences must call.
    """
    modes = [(module, module.training) for module in model.modules()]
    name, seen, found = type(model).__name__, dict[str, list[Any]](), list[Any]()

    def keep(where: str, _: nn.Module, *values: Any) -> None:
        seen.setdefault(where, []).append(tree_leaves(tree_map_only(torch.Tensor, torch.clone, values)))

    def compare(where: str, _: nn.Module, *values: Any) -> Any:
        """Note how much values differ, and go on with those of the whole, so that errors do not add up."""
        leaves, structure = tree_flatten(values)
        calls = seen.get(where) or [leaves]
        for index, (x, theirs) in enumerate(zip(leaves, calls.pop(0), strict=False)):
            if isinstance(x, torch.Tensor):
                error, has_tokens = _error(x, theirs, division), _by_token(x, theirs, division)
                found.append((where, x, theirs, error if has_tokens or where == _OUTPUTS else 0.0))
                leaves[index] = division.local(theirs) if has_tokens else x
        return tree_unflatten(leaves, structure)[-1]

    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            _run(model, whole, keep)
            _run(model, parts, compare)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, CannotDivide):
            raise
        raise CannotDivide(
            f"{name} fails on its first {division.length} tokens, or on a part of these: {error}; labels stay whole,"
            " and accel_sequence.part gives those of a part"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
        # what was cast without gradients has none
        torch.clear_autocast_cache()
    few = any(x.dtype in (torch.float16, torch.bfloat16) for _, x, _, _ in found)
    few = few or torch.get_float32_matmul_precision() != "highest"
    wrong = [error > (TOLERANCE_IN_HALF if few else TOLERANCE) for *_, error in found]
    first = torch.tensor([*wrong, True].index(True), device=found[-1][1].device)
    for where, mine, theirs, _ in found[int(division.ranks.all.gather(first).min()) :][:1]:
        raise CannotDivide(
            f"{name} computes for parts of a sequence what is not that of the whole, first in {where}, of shape"
            f" {tuple(mine.shape)} for {tuple(theirs.shape)}: something besides accel_sequence.attention looks at other"
            " tokens, or at the number or places of its own (an attention of torch, a convolution, a recurrence, a"
            " shift, a mean over tokens, a loss that is not of accel_sequence.loss or total, positions that are not of"
            " accel_sequence.positions); use these, or leave out sp_size and cp_size"
        )
    return [_by_token(x, theirs, division) for where, x, theirs, _ in found if where == _OUTPUTS]


def _run(model: nn.Module, forward: Callable[[], Any], note: Callable[..., Any]) -> None:
    """Run a forward, and tell what its modules are given and return, and what it returns."""
    hooks = [module.register_forward_hook(partial(note, name)) for name, module in model.named_modules() if name]
    try:
        note(_OUTPUTS, model, forward())
    finally:
        for hook in hooks:
            hook.remove()


def _by_token(mine: torch.Tensor, whole: torch.Tensor, division: Division) -> bool:
    return mine.shape[1:2] == (division.part,) and whole.shape == (len(mine), division.length, *mine.shape[2:])


def _error(mine: torch.Tensor, whole: torch.Tensor, division: Division) -> float:
    """Return by what share of its norm a tensor is not that of the whole."""
    if _by_token(mine, whole, division):
        # numbers of tokens may be the other of two that are nearly as good
        real = division.local(torch.ones_like(whole)) * mine.is_floating_point()
        mine, whole = mine * real, division.local(whole) * real
    if mine.shape != whole.shape:
        return math.inf
    mine, whole = (x.float().nan_to_num(0.0, 0.0, 0.0) for x in (mine, whole))
    return float((mine - whole).norm() / whole.norm().clamp(min=1e-30))
