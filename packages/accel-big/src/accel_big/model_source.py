"""Find the model that a command line names, and build it, without memory if its constructor allows that."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from accel_state import is_initialized, release
from accel_state.errors import CannotRun
from accel_state.failure_file import describe
from torch import nn

from accel_big.estimate_options import COMMAND
from accel_big.memory_estimate import ModelSize, measure_model, measure_weights

CONFIG = "config.json"
FORMS = (
    "MODULE:NAME or FILE.py:NAME of a model or of what makes one, a folder with config.json or weights, or a"
    " .safetensors file or its .index.json. Models of the hub are not downloaded: give the folder they are in"
)


def locate(text: str) -> Callable[[], ModelSize]:
    """Return the function that builds and measures a model, for `load`. Nothing is imported or read yet.

    Args:
        text: MODULE:NAME, FILE.py:NAME, a folder or a file.

    Raises:
        CannotRun: There is no such model.
    """
    path = Path(text)
    if path.exists():
        folder = path.parent if path.name == CONFIG else path
        return partial(_from_config if (folder / CONFIG).is_file() else measure_weights, folder)
    module, _, name = text.partition(":")
    file = Path(module) if module.endswith(".py") else None
    if file and not file.is_file():
        raise _refused(f"{text!r}: there is no file {file} in {Path.cwd()}")
    names = name if file else f"{module}.{name}"
    if not all(map(str.isidentifier, names.split("."))):
        raise _refused(f"{text!r} is neither a file nor a folder in {Path.cwd()}. Expected {FORMS}")
    with _search_path(file):
        package = module.partition(".")[0]
        if not file and package not in sys.modules and find_spec(package) is None:
            folders = "\n  ".join(["", *sys.path])
            raise _refused(
                f"module {module!r} is not found: there is no {package!r} in the search path, which is{folders}"
            )
    return partial(_from_code, text, file, module, name)


def load(build: Callable[[], ModelSize]) -> ModelSize:
    """Return the sizes of a model that `locate` found, and the model itself unless it is weights.

    Prints of the code go to stderr, and a run that the code starts, such as by an Accelerator in its module, ends.

    Raises:
        CannotRun: The model cannot be imported or made. The error has that of the user's code.
    """
    initialized = is_initialized()
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return build()
        finally:
            if not initialized:
                release()


def _from_code(text: str, file: Path | None, module: str, name: str) -> ModelSize:
    with _search_path(file):
        named = _run(f"importing {text}", lambda: attrgetter(name)(_execute(file) if file else import_module(module)))
        if isinstance(named, nn.Module):
            return _build(text, lambda: named)
        try:
            inspect.signature(named).bind()
        except TypeError as error:
            kind = type(named).__name__
            raise _refused(
                f"{text} is a {kind}: expected a torch.nn.Module, or what makes one when called without arguments,"
                f" such as def make(): return Net(depth=2); {error}"
            ) from None
        except ValueError:
            pass  # not written in Python: the call will tell
        return _build(text, named)


def _execute(path: Path) -> Any:
    """Return the module of a file, whose name may be that of another module."""
    spec: Any = spec_from_file_location("__model__", path)  # of a file of code it is never None
    # dataclasses and the like look for the module of a class by its name
    sys.modules[spec.name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(text: str, make: Callable[[], Any], *notes: str) -> ModelSize:
    try:
        with torch.device("meta"):
            model = make()
    except Exception as error:  # noqa: BLE001 - the user's constructor may raise anything
        model = _run(text, make)
        notes += (f"built on the CPU, in memory, since its constructor cannot run on the meta device: {_words(error)}",)
    if not isinstance(model, nn.Module):
        raise _refused(f"{text} gives a {type(model).__name__}: expected a torch.nn.Module")
    return measure_model(model, f"{text}, a {type(model).__name__}", notes)


def _run(what: str, action: Callable[[], Any]) -> Any:
    """Return the result of user's code. Raise CannotRun with its error and the line."""
    try:
        return action()
    except (Exception, SystemExit) as error:
        site = describe(error)["site"]
        raise _refused(f"{what} raises {_words(error)}{f' ({site})' if site else ''}") from error


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _from_config(folder: Path) -> ModelSize:
    config = folder / CONFIG
    try:
        return _by_transformers(config)
    except CannotRun as error:
        why = error.reasons[0].splitlines()[0]
    try:
        return measure_weights(folder, (f"counted from the names in the weights, not from {config}: {why}",))
    except CannotRun as error:
        raise _refused(f"no model can be built from {config}: {why}; and {error.reasons[0]}") from None


def _by_transformers(path: Path) -> ModelSize:
    try:  # no dependency: a user with such a folder has it
        transformers: Any = import_module("transformers")
    except ImportError:
        raise _refused(
            f"package transformers is not installed for {sys.executable}: pip install transformers"
        ) from None
    make_config = partial(transformers.AutoConfig.from_pretrained, local_files_only=True, trust_remote_code=False)
    config = _run(f"reading {path}", partial(make_config, path.parent))
    # A config may name attention kernels, which would be downloaded and run; they have no parameters.
    config._attn_implementation = "eager"
    names = config.architectures or []
    head = getattr(transformers, names[0], None) if names else None
    if isinstance(head, type) and issubclass(head, transformers.PreTrainedModel):
        return _build(str(path), partial(head, config))
    make = partial(transformers.AutoModel.from_config, config, trust_remote_code=False)
    return _build(str(path), make, *(f"transformers has no {name}: counted without its head" for name in names))


@contextlib.contextmanager
def _search_path(file: Path | None) -> Iterator[None]:
    """Find modules of the working directory, or of a file's folder, first, as `python` does without PYTHONSAFEPATH."""
    if sys.flags.safe_path:
        yield
        return
    folder = str(file.resolve().parent if file else Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _refused(reason: str) -> CannotRun:
    return CannotRun(COMMAND, [reason])
