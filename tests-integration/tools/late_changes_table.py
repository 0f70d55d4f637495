"""The table of docs/guides/after-prepare.md: what a script may do around `prepare`; run it to write the page anew."""

from __future__ import annotations

import re
from pathlib import Path

from late_changes import TITLES

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "after-prepare.md"
PLACE = re.compile(r"(?<=<!-- changes -->\n).*?(?=<!-- end of changes -->)", re.DOTALL)
SHARDED = ("fsdp2", "HSDP", "TP")
ENGINE = ("DeepSpeed 1, 2", "DeepSpeed 3")
COLUMNS = ("ddp", *SHARDED, *ENGINE, "spmd")

_ADDED = dict.fromkeys(ENGINE, "add_param_group: DeepSpeed's engine has divided the parameters")
_OTHERS = dict.fromkeys(ENGINE, "frozen, unfrozen, added or taken out after prepare")
_TWICE = dict.fromkeys(ENGINE, "add the losses and call backward once")
_HOOK = dict.fromkeys(SHARDED, "register_hook of first.weight")
_HIDDEN = {
    **dict.fromkeys((*SHARDED, "spmd"), "the first step of this InClosure has changed none"),
    **dict.fromkeys(ENGINE, "the first step of this InClosure has changed no parameter"),
}
_NO_GRADIENT = dict.fromkeys(ENGINE, "'NoneType' object")
_STAGE_3 = {"DeepSpeed 3": "invalid gradient at index 1"}
_ELSEWHERE = dict.fromkeys(SHARDED, "was replaced, tied, parametrized or called with others")
#: the words of what is refused, by change and column
REFUSALS: dict[str, dict[str, str]] = {
    "lbfgs": {
        "TP": "torch cannot do the step of LBFGS with sharded parameters",
        **dict.fromkeys(ENGINE, "DeepSpeed's engine takes no closure"),
    },
    "own_list": dict.fromkeys(ENGINE, "the first step of this OwnList has changed no parameter"),
    "in_closure": _HIDDEN,
    "group_of_prepared": _ADDED,
    "group_listed_before": {
        **dict.fromkeys(SHARDED, "add_param_group with sharded parameters: 2 parameters"),
        **_ADDED,
        "spmd": "add_param_group: 2 parameters are on cpu",
    },
    "loose": {
        **dict.fromkeys(SHARDED, "these parameters are in no prepared model"),
        **dict.fromkeys(ENGINE, "1 parameters of the optimizer are not of the model"),
    },
    "never_prepared": {
        **dict.fromkeys(
            (*SHARDED, "spmd"), "this SGD is not prepared, and holds 8 parameters that prepare has replaced"
        ),
        **dict.fromkeys(ENGINE, "found 0 optimizers"),
    },
    "direct_backwards": {
        "ddp": "SGD.step: ranks have unlike gradients",
        "DeepSpeed 1, 2": "no loss of this micro-batch went through accelerator.backward",
        "DeepSpeed 3": "The size of tensor a",
    },
    "autograd_grad": {
        "ddp": "SGD.step: ranks have unlike gradients",
        **dict.fromkeys(SHARDED, "appears to not have been used in the graph"),
        "DeepSpeed 1, 2": "list index out of range",
        "DeepSpeed 3": "attempting to assign a gradient of size",
    },
    "called_with_others": {**_ELSEWHERE, "DeepSpeed 3": "no attribute 'ds_status'"},
    "replaced_layer": _ADDED,
    "tied": {**_ELSEWHERE, **_OTHERS},
    "rows_written": _NO_GRADIENT,
    "rows_in_place": {**dict.fromkeys(SHARDED, "zero_ of rows of a sharded tensor"), **_NO_GRADIENT},
    "number_read": dict.fromkeys(SHARDED, "a number of a sharded tensor"),
    "clipping_hook": _HOOK,
    "two_optimizers": dict.fromkeys(ENGINE, "found 2 optimizers"),
    "unfrozen": _OTHERS,
    "frozen": _OTHERS,
    "swapped": _OTHERS,
    "new_layer": _ADDED,
    "skipped_layer": {"ddp": "without gradients .*find_unused_parameters=True"},
    "second_backward": _TWICE,
    "two_forwards": _TWICE,
    "weighted_backwards": _TWICE,
    "backwards_of_a_window": _TWICE,
    "gradient_penalty": dict.fromkeys((*SHARDED, *ENGINE), "create_graph=True through a sharded model"),
    "weight_term": {**dict.fromkeys(SHARDED, "mixed torch.Tensor and DTensor|different meshes"), **_STAGE_3},
    "whole_weight_term": _STAGE_3,
    "hook_before": _HOOK,
    "hook_after": _HOOK,
    "clipped": dict.fromkeys(ENGINE, "DeepSpeed has the norm 2 only"),
    "weights_in_place": dict.fromkeys(ENGINE, "DeepSpeed steps float32 copies"),
    "data_replaced": {
        **dict.fromkeys(SHARDED, "first.weight.data was replaced"),
        "DeepSpeed 1, 2": "DeepSpeed steps float32 copies",
    },
    "converted": {"DeepSpeed 1, 2": "DeepSpeed steps float32 copies"},
    "averaged": {"DeepSpeed 3": "The size of tensor a"},
}
#: what a script finds nothing to change in: gradients are in DeepSpeed's buffers, and weights of stage 3 are empty
UNSEEN = {
    *((name, column) for name in ("attributes", "kept_gradients", "logged_norms", "number_read") for column in ENGINE),
    ("data_replaced", "DeepSpeed 3"),
}
#: what gives other weights, with a warning: hooks have the gradients of one process
WARNED = {(name, column) for name in ("clipping_hook", "clipping_grown_hook", "stepping_hook") for column in ENGINE}


def table() -> str:
    """The table in Markdown."""
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name, title in TITLES.items():
        lines.append(f"| {title} | {' | '.join(_says(name, column) for column in COLUMNS)} |")
    return "\n".join(lines) + "\n"


def _says(name: str, column: str) -> str:
    if (name, column) in UNSEEN:
        return "nothing there"
    if (name, column) in WARNED:
        return "warned of"
    return "refused" if column in REFUSALS.get(name, {}) else "exact"


if __name__ == "__main__":
    PAGE.write_text(PLACE.sub(lambda _: table(), PAGE.read_text()))
