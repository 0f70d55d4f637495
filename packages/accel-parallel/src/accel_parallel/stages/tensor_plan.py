"""Find which modules of a model are divided over ranks, and in which style, by a plan that names them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

#: what becomes of modules, by the pattern of their names: the name of a style, or a style of torch
Plan = Mapping[str, str | ParallelStyle]
Styles = dict[str, ParallelStyle]

logger = logging.getLogger("accel")


#: styles that leave inputs and outputs of a layer whole
_columns_gathered = partial(ColwiseParallel, output_layouts=Replicate())
_rows_of_whole_input = partial(RowwiseParallel, input_layouts=Replicate())
#: the styles by the names that Transformers has for them; None leaves the module whole
STYLES: dict[str, Callable[[], ParallelStyle] | None] = {
    "colwise": ColwiseParallel,
    "colwise_gather_output": _columns_gathered,
    "colwise_rep": _columns_gathered,
    "rowwise": RowwiseParallel,
    "rowwise_split_input": _rows_of_whole_input,
    "rowwise_rep": _rows_of_whole_input,
    "embedding_colwise": _columns_gathered,
    "embedding_rowwise": _rows_of_whole_input,
    "sequence_parallel": partial(SequenceParallel, use_local_output=True),
    # each rank norms heads of its own, and the weight's gradient is the sum of all ranks'. Torch's style does so
    # whichever dim is said to be divided, if it is not the one that is normed
    "replicated_with_grad_allreduce": partial(SequenceParallel, sequence_dim=0, use_local_output=True),
    "replicate": None,
}
#: the dim of the weight that a style divides
_DIVIDED_DIMS = {
    (nn.Linear, ColwiseParallel): 0,
    (nn.Linear, RowwiseParallel): 1,
    (nn.Embedding, ColwiseParallel): 1,
    (nn.Embedding, RowwiseParallel): 0,
}


class TensorPlanError(ValueError):
    """An error of layers that cannot be divided as the plan says. The message lists every reason."""


def styles_of(model: nn.Module, ranks: int, plan: Plan | None = None) -> Styles:
    """Return the parallel style of each module that the plan names, except those it leaves replicated.

    Weights tied to a sharded weight are sharded like it. If a module has LoRA adapters of peft, its base layer and one
    of the two adapter matrices get its style.

    Args:
        model: The model.
        ranks: Number of ranks that divide each layer.
        plan: Styles by patterns of names. By default the plan of the model itself, such as `tp_plan` of Transformers.

    Raises:
        TensorPlanError: There is no plan, or the model cannot be sharded by it. The message lists every reason.
    """
    name = type(model).__name__
    given = plan if plan is not None else _own_plan(model)
    if not given:
        raise TensorPlanError(
            f"tensor parallelism needs a plan, and {name} has none of its own (tp_plan); give one, as in"
            ' ParallelismConfig(tp_size=2, tp_plan={"blocks.*.up": "colwise", "blocks.*.down": "rowwise"})'
        )
    styles, problems = _styles_by_name(model, given, is_own=plan is None)
    problems += _divide_ties(model, styles)
    problems += _not_divisible(model, styles, ranks)
    problems += _heads_not_divisible(model, ranks)
    problems += _rows_of_heads(model, styles)
    if problems:
        of = f"the plan of {name} itself" if plan is None else f"the plan for {name}"
        raise TensorPlanError(f"{of} cannot divide it over {ranks} ranks:\n  " + "\n  ".join(problems))
    return styles


def _own_plan(model: nn.Module) -> Plan:
    """Return the plan of the outermost module whose class has one, as a model of peft has it inside."""
    for path, module in model.named_modules():
        if hasattr(type(module), "tp_plan"):
            own: Any = module.tp_plan or {}
            return {f"{path}.{pattern}" if path else pattern: style for pattern, style in own.items()}
    return {}


def _styles_by_name(model: nn.Module, plan: Plan, *, is_own: bool) -> tuple[Styles, list[str]]:
    """Return the style of each module that a pattern names, and what is wrong with the plan."""
    styles: Styles = {}
    problems, unmatched = [], []
    modules = dict(model.named_modules())
    for pattern, style in plan.items():
        paths = [path for path in modules if path and _matches(path, pattern)]
        if not paths:
            unmatched.append(pattern)
        elif not isinstance(style, ParallelStyle) and style not in STYLES:
            known = ", ".join(STYLES)
            problems.append(f"{pattern}: the style {style!r} is not known here; known are {known}, and torch's own")
        else:
            styles |= {path: made for path in paths if (made := _made(style, modules[path])) is not None}
    if unmatched and (not is_own or len(unmatched) == len(plan)):
        shown = ", ".join(list(modules)[1:9])
        problems += [f"{pattern}: names no module; the first modules are {shown}" for pattern in unmatched]
    elif unmatched:
        logger.info("%s has no modules %s of its tp_plan", type(model).__name__, ", ".join(unmatched))
    return _with_adapters(modules, styles), problems


def _matches(path: str, pattern: str) -> bool:
    """Return whether a pattern names a module. A star stands for one step of the path, or a part of one."""
    steps, wanted = path.split("."), pattern.split(".")
    return len(steps) == len(wanted) and all(map(fnmatchcase, steps, wanted))


def _made(style: str | ParallelStyle, module: nn.Module) -> ParallelStyle | None:
    if isinstance(style, ParallelStyle):
        return style
    if style == "rowwise" and isinstance(module, nn.Embedding):
        return _rows_of_whole_input()
    make = STYLES[style]
    return None if make is None else make()


def _with_adapters(modules: Mapping[str, nn.Module], styles: Styles) -> Styles:
    """Return the styles, those of layers with adapters of peft (LoRA) handed on to the layers inside."""
    handed_on: Styles = {}
    for path, style in styles.items():
        if not {"base_layer", "lora_A", "lora_B"} <= set(dict(modules[path].named_children())):
            handed_on[path] = style
            continue
        # columns are those of the second of the two small matrices, rows those of the first
        beside = f"{path}.lora_B" if isinstance(style, ColwiseParallel) else f"{path}.lora_A"
        handed_on[f"{path}.base_layer"] = style
        handed_on |= {inner: style for inner in modules if inner.rpartition(".")[0] == beside}
    return handed_on


def _divided_dim(module: nn.Module, style: ParallelStyle) -> int | None:
    dims = [dim for (kind, way), dim in _DIVIDED_DIMS.items() if isinstance(module, kind) and isinstance(style, way)]
    return dims[0] if dims else None


def _not_divisible(model: nn.Module, styles: Styles, ranks: int) -> list[str]:
    problems = []
    for path, style in styles.items():
        module = model.get_submodule(path)
        dim = _divided_dim(module, style)
        if dim is not None:
            size = module.get_parameter("weight").shape[dim]
            if size % ranks:
                problems.append(f"{path}: dim {dim} of its weight has {size} entries, no multiple of {ranks}")
        elif isinstance(style, ColwiseParallel | RowwiseParallel):
            problems.append(f"{path}: a {type(module).__name__} cannot be divided, only Linear and Embedding can")
    return problems


def _heads(model: nn.Module) -> dict[str, int]:
    """Return how many heads attention has, by the names of Transformers' configurations."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    heads = {name: getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")}
    return {name: count for name, count in heads.items() if isinstance(count, int)}


def _heads_not_divisible(model: nn.Module, ranks: int) -> list[str]:
    """List what is wrong with the heads, as attention computes whole heads on each rank."""
    return [
        f"{name}={count} is not a multiple of {ranks}; use a tp_size that divides it"
        for name, count in _heads(model).items()
        if count % ranks
    ]


def _rows_of_heads(model: nn.Module, styles: Styles) -> list[str]:
    """List weights beside divided projections that have a row for each head, of which a rank computes some."""
    divided = {path.rpartition(".")[0] for path, style in styles.items() if isinstance(style, ColwiseParallel)}
    counts = set(_heads(model).values())
    return [
        f"{path}: its {name} has a row for each head, and a rank computes some of the heads; leave it out (as"
        " use_qk_norm=False does), or shard the model without dividing layers"
        for path, module in model.named_modules()
        if path not in styles
        and path.rpartition(".")[0] in divided
        and not isinstance(module, nn.Linear | nn.Embedding)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 2 and parameter.shape[0] in counts
    ]


def _divide_ties(model: nn.Module, styles: Styles) -> list[str]:
    """Add the styles that tied weights need to stay tied, and return what conflicts with that."""
    problems = []
    for tie in _ties(model):
        modules = {path.rpartition(".")[0]: model.get_submodule(path.rpartition(".")[0]) for path in tie}
        dims = {_divided_dim(module, styles[path]) for path, module in modules.items() if path in styles}
        if not dims:
            continue
        dim = next(iter(dims))
        added = {path: _styles_for_dim(module, dim) for path, module in modules.items() if path not in styles}
        if len(dims) > 1 or dim is None or not all(added.values()):
            problems.append(f"{' and '.join(tie)} are one weight, and would be divided in different ways")
        else:
            styles |= {path: choices[0] for path, choices in added.items()}
    return problems


def _styles_for_dim(module: nn.Module, dim: int | None) -> list[ParallelStyle]:
    makes: dict[type, Any] = {ColwiseParallel: _columns_gathered, RowwiseParallel: _rows_of_whole_input}
    return [makes[way]() for (kind, way), at in _DIVIDED_DIMS.items() if isinstance(module, kind) and at == dim]


def _ties(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the paths of each weight that has several."""
    paths: dict[int, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        paths.setdefault(id(parameter), []).append(path)
    return [tuple(same) for same in paths.values() if len(same) > 1]
