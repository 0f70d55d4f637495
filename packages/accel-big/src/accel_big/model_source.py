"""Finds the model that a command line names, and builds it, without memory if its constructor allows that."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import compress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from accel_checkpoint import CheckpointError, weight_files
from accel_state import is_initialized, release
from accel_state.errors import CannotRun
from torch import nn

CONFIG = "config.json"
COMMAND = "accel estimate-memory"
FORMS = (
    "MODULE:NAME or FILE.py:NAME of a model or of what makes one, a folder with config.json or weights, or a"
    " .safetensors file or its .index.json"
)


class ModelSource(NamedTuple):
    """The place of a model: code, a config of transformers, or weights."""

    kind: Literal["code", "config", "weights"]
    module: str = ""
    name: str = ""
    path: Path = Path()
    notes: tuple[str, ...] = ()


class LoadedModel(NamedTuple):
    """A model, words that tell its origin, and notes for the user."""

    model: nn.Module
    made_by: str
    notes: tuple[str, ...]


def locate(text: str) -> ModelSource:
    """Finds the model, of which nothing is imported or read but names.

    Raises: CannotRun if there is no such model.
    """
    path = Path(text)
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return _in_folder(path.parent) if path.name == CONFIG else ModelSource("weights", path=path)
    module, colon, name = text.partition(":")
    if not colon:
        near = " Models of the hub are not downloaded: give the folder they are in." if "." not in path.name else ""
        raise _refused(f"{text!r} is neither a file nor a folder in {Path.cwd()}. Expected {FORMS}.{near}")
    if module.endswith(".py"):
        return _in_file(text, module, name)
    if not all(part.isidentifier() for part in f"{module}.{name}".split(".")):
        raise _refused(f"{text!r}: expected MODULE:NAME, such as models:make, or a file or folder that exists")
    package = module.partition(".")[0]
    with _own_modules_first():
        try:
            known = find_spec(package) is not None
        except ValueError:  # __main__, which no import finds
            known = False
        if not known:
            raise _no_module(module, package)
    return ModelSource("code", module=module, name=name)


def _in_file(text: str, file: str, name: str) -> ModelSource:
    path = Path(file).expanduser()
    if not path.is_file():
        raise _refused(f"{text!r}: there is no file {file} in {Path.cwd()}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise _refused(f"{text!r}: expected the name of a model or of what makes one after the colon: {file}:make")
    return ModelSource("code", module=file, name=name, path=path)


def _in_folder(folder: Path) -> ModelSource:
    config = folder / CONFIG
    if not config.is_file():
        return ModelSource("weights", path=folder)
    try:
        names = json.loads(config.read_text(encoding="utf-8"))
        why = None if "model_type" in names else "it names no model_type, so it is no config of transformers"
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = f"it cannot be read: {error}"
    if why is None and find_spec("transformers") is None:
        why = f"package transformers is not installed for {sys.executable}: pip install transformers"
    return ModelSource("config", path=folder) if why is None else weights_instead(folder, why)


def weights_instead(folder: Path, why: str) -> ModelSource:
    """The weights in a folder whose config cannot be used.

    Raises: CannotRun if there are no weights.
    """
    try:
        weight_files(folder)
    except CheckpointError as error:
        raise _refused(f"no model can be built from {folder / CONFIG}: {why}; and {error}") from None
    note = f"counted from the names in the weights, not from {folder / CONFIG}: {why}"
    return ModelSource("weights", path=folder, notes=(note,))


def load(source: ModelSource) -> LoadedModel | ModelSource:
    """The model, on the meta device if its constructor allows that; the source itself if it is weights.

    Prints of the code go to stderr.

    Raises: CannotRun if the model cannot be imported or made; it tells the error of the user's code.
    """
    if source.kind == "weights":
        return source
    with contextlib.redirect_stdout(sys.stderr), _no_run_left():
        if source.kind == "code":
            return _from_code(source)
        try:
            return _from_config(source.path)
        except CannotRun as error:
            return weights_instead(source.path, error.reasons[0].splitlines()[0])


def _from_code(source: ModelSource) -> LoadedModel:
    module, text = source.module, f"{source.module}:{source.name}"
    of_a_file = source.path != Path()
    with _own_modules_first(source.path.resolve().parent if of_a_file else None):
        named: Any = _run(f"importing {module}", lambda: _executed(source.path) if of_a_file else _imported(module))
        for part in source.name.split("."):
            try:
                named = getattr(named, part)
            except AttributeError:
                known = ", ".join(name for name in dir(named) if not name.startswith("_")) or "nothing"
                raise _refused(f"{text}: there is no {part!r}; there is {known}") from None
        if isinstance(named, nn.Module):
            return LoadedModel(named, f"{text}, a {type(named).__name__}", ())
        if not callable(named):
            raise _refused(f"{text} is a {type(named).__name__}: expected a torch.nn.Module, or what makes one")
        missing = _without_default(named)
        if missing:
            raise _refused(
                f"{text} needs arguments ({', '.join(missing)}), and is called without any; write a function without"
                f" arguments, such as def make(): return {named.__name__}(...), and name that"
            )
        model, notes = _on_meta(text, named)
    if not isinstance(model, nn.Module):
        raise _refused(f"{text} gives a {type(model).__name__}: expected a torch.nn.Module")
    return LoadedModel(model, f"{text}, a {type(model).__name__}", notes)


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # an import inside the user's module
        raise _no_module(module, error.name) from None


def _executed(path: Path) -> Any:
    """The module of a file, whose name may be that of another module."""
    name = "__model__"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _refused(f"{path} cannot be imported")
    module = module_from_spec(spec)
    # dataclasses and the like look for the module of a class by its name
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _no_module(module: str, missing: str) -> CannotRun:
    path = "".join(f"\n  {folder or Path.cwd()}" for folder in sys.path)
    return _refused(f"module {module!r} is not found: there is no {missing!r} in the search path, which is{path}")


def _without_default(callable_: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(callable_).parameters.values()
    except (ValueError, TypeError):
        return []  # not written in Python: the call will tell
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [value.name for value in parameters if value.default is value.empty and value.kind not in optional]


def _on_meta(text: str, make: Callable[[], Any]) -> tuple[Any, tuple[str, ...]]:
    try:
        with torch.device("meta"):
            return make(), ()
    except Exception as error:  # noqa: BLE001 - the user's constructor may raise anything
        why = _words(error)
    model = _run(text, make)
    return model, (f"built on the CPU, in memory, since its constructor cannot run on the meta device: {why}",)


def _run(what: str, action: Callable[[], Any]) -> Any:
    """The result of the action.

    Raises: CannotRun that tells the error of the user's code, with its line.
    """
    try:
        return action()
    except CannotRun:
        raise
    except (Exception, SystemExit) as error:
        raise _refused(f"{what} raises {_words(error)}{_line(error)}") from error


def _words(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _line(error: BaseException) -> str:
    """The innermost line of the user's code in a traceback, or of any code if the user's is not in it."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({_short(error.filename)}:{error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    frames = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    paths = [Path(frame.filename) for frame in frames]
    own = [path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts for path in paths]
    last = (list(compress(frames, own)) or frames)[-1:]
    return "".join(f" ({_short(frame.filename)}:{frame.lineno}, in {frame.name})" for frame in last)


def _short(file: str) -> str:
    return os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file


def _from_config(folder: Path) -> LoadedModel:
    # no dependency: a user with such a folder has it
    transformers: Any = _run("importing transformers", lambda: import_module("transformers"))
    config = _run(
        f"reading {folder / CONFIG}",
        lambda: transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False),
    )
    # A config may name attention kernels, which would be downloaded and run; they have no parameters.
    config._attn_implementation = "eager"
    notes: tuple[str, ...] = ()
    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    classes = [kind for kind in named if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)]
    if config.architectures and not classes:
        notes = (f"transformers has no {', '.join(config.architectures)}: counted without its head",)

    def make() -> Any:
        return classes[0](config) if classes else transformers.AutoModel.from_config(config, trust_remote_code=False)

    model, more = _on_meta(str(folder / CONFIG), make)
    return LoadedModel(model, f"{folder / CONFIG}, a {type(model).__name__}", (*notes, *more))


@contextlib.contextmanager
def _own_modules_first(folder: Path | None = None) -> Iterator[None]:
    """In this block modules of the working directory, or of a file's folder, are found as by `python`.

    With PYTHONSAFEPATH they are not found, as by `python`.
    """
    here = str(folder or Path.cwd())
    if sys.flags.safe_path or here in sys.path or (folder is None and "" in sys.path):
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


@contextlib.contextmanager
def _no_run_left() -> Iterator[None]:
    """A run that the user's code starts, such as by an Accelerator in its module, ends with the block."""
    before = is_initialized()
    try:
        yield
    finally:
        if is_initialized() and not before:
            release()


def _refused(reason: str) -> CannotRun:
    return CannotRun(COMMAND, [reason])
