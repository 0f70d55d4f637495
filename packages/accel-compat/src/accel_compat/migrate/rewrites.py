"""Find what `accel migrate` writes in place of a module, and the names that break afterwards."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from symtable import SymbolTable, symtable

from accel_compat.finder import UPSTREAM, answer_for

OURS = "accel"
_OF_LOADERS = "dataloader_config=DataLoaderConfiguration({}=...)"
#: arguments of other releases, with what accel takes in their place
ARGUMENTS = {
    "logging_dir": "project_dir=...",
    "dispatch_batches": _OF_LOADERS,
    "even_batches": _OF_LOADERS,
    "use_seedable_sampler": _OF_LOADERS,
    "non_blocking": _OF_LOADERS,
    "use_stateful_dataloader": _OF_LOADERS,
    "torch_tp_plugin": "parallelism_config=...",
    "deepspeed_plugins": "deepspeed_plugin=...",
}
#: differences, with the page that says why, by the names of methods, functions and arguments
DIFFERENT = {
    "accumulate|gradient_accumulation_steps|GradientAccumulationPlugin": "a window that the end of an epoch cuts short"
    " is divided by its real number of batches (docs/guides/accumulation.md)",
    "save_state": "every rank has to call it, also where a script has `if accelerator.is_main_process`; a checkpoint is"
    " there whole or not at all, and its weights are safetensors (docs/guides/saving.md)",
    "load_state": "loaders go on at the batch where the checkpoint was taken: remove what skips batches by `continue`"
    " (docs/guides/saving.md)",
    "OneCycleLR|LambdaLR|get_scheduler|get_linear_schedule_with_warmup|get_cosine_schedule_with_warmup": "a schedule"
    " rests at its end, and counts steps of the optimizer that happened (docs/guides/schedules.md)",
    "prepare": "data that differs between processes is refused, where Accelerate trains on it"
    " (docs/explanation/disagreement.md)",
}
#: names that are here and break, with words
_BREAKS = {
    "__version__": "the version is that of accel, which counts its own releases",
    "*": "a star brings names that cannot be checked: import the names that are used",
}


def module_for(module: str) -> str:
    """Return the module of accel that answers a module of Accelerate, or else the same path."""
    return answer_for(module) or module.replace(UPSTREAM, OURS, 1)


@cache
def is_module(name: str) -> bool:
    """Return whether accel has a module of this name."""
    return name.partition(".")[0] == OURS and answer_for(name.replace(OURS, UPSTREAM, 1)) == name


@cache
def why_missing(module: str, name: str = "") -> str | None:
    """Return why a module of accel, or a name in it, is not what it is in Accelerate, or None if it works."""
    if not is_module(module):
        return f"accel has no module {module}"
    # a look at the text of the module: an import of torch takes seconds
    known = _table(module).get_identifiers()
    if not name or name in _BREAKS or name in known or is_module(f"{module}.{name}"):
        return _BREAKS.get(name)
    if "__getattr__" not in known:
        return f"{module} has no {name}"
    home = import_module(module)
    try:
        if name not in dir(home):
            getattr(home, name)
    except AttributeError as error:
        return str(error)
    return None


@cache
def _table(module: str) -> SymbolTable:
    spec = find_spec(module)
    path = str(spec.origin) if spec is not None else __file__
    return symtable(Path(path).read_text(encoding="utf-8"), path, "exec")
