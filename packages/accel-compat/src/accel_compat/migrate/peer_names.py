"""Where accel has the modules and names of Accelerate, and words for those that it does not have."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec

PEER = "accelerate"
#: modules of Accelerate whose parts are one module in accel
_WHOLE = ("utils", "test_utils")
#: modules of `accelerate.utils` that have the name of nothing else in it
_PARTS = re.compile(
    r"accelerate\.utils\.(ao|bnb|constants|dataclasses|deepspeed|environment|fsdp_utils|imports|launch|megatron_lm"
    "|memory|modeling|offload|operations|other|torch_xla|transformer_engine|versions)"
)


def module_for(name: str) -> str:
    """The module of accel for a module of Accelerate: all parts of `accelerate.utils` are `accel.utils`."""
    parts = name.split(".")
    kept = parts[1:2] if parts[1:2] and parts[1] in _WHOLE else parts[1:]
    return ".".join(["accel", *kept])


def is_part(name: str) -> bool:
    """Whether a name is a module of `accelerate.utils`, and not a function or class in it."""
    return _PARTS.fullmatch(name) is not None


def is_module(name: str) -> bool:
    """Whether accel has a module of this name."""
    parent, _, _ = name.rpartition(".")
    if parent and not (is_module(parent) and hasattr(import_module(parent), "__path__")):
        return False
    return find_spec(name) is not None


def why_missing(module: str, name: str) -> str | None:
    """Why a name of a module of accel cannot be imported, or None if it can."""
    if not is_module(module):
        return f"accel has no module {module}"
    if is_module(f"{module}.{name}"):
        return None
    try:
        getattr(import_module(module), name)
    except AttributeError as error:
        return str(error)
    except ImportError as error:
        return f"{module}.{name} cannot be imported here: {error}"
    return None
