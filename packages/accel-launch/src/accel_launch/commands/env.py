"""`accel env`: what a bug report needs: versions, devices, the config file, and which settings win."""

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from accel_state.environ import process_environ
from accel_state.errors import CannotRun

from accel_launch.arguments import split
from accel_launch.config import config_folder
from accel_launch.help_text import env_help
from accel_launch.job import Choices, choose, this_machine, without_script


def run(tokens: Sequence[str]) -> int:
    """Prints the report.

    Raises: CannotRun after the report, if any setting in it is wrong.
    """
    line = split(tokens)
    if line.help:
        print(env_help(), end="")
        return 0
    stray = without_script(line, "accel env")
    if stray:
        raise CannotRun("accel env", [*line.problems, *stray])
    environ = process_environ()
    choices = choose(line, environ)
    for part in (_versions(), _devices(environ), _config(choices, environ), _settings(choices), _variables(environ)):
        print("\n".join(part), flush=True)
    if choices.problems:
        raise CannotRun("accel env", choices.problems)
    return 0


def _versions() -> Iterator[str]:
    yield f"python: {platform.python_version()} ({sys.executable})"
    yield f"platform: {platform.platform()}"
    ours = {
        each.metadata["Name"]: each.version
        for each in distributions()
        if each.metadata["Name"] == "accel" or (each.metadata["Name"] or "").startswith("accel-")
    }
    yield from (f"{name}: {version}" for name, version in sorted(ours.items()))
    if not ours:
        yield "accel: no distribution is installed; the packages are used from a source folder"


def _devices(environ: Mapping[str, str]) -> Iterator[str]:
    machine = this_machine(environ)
    yield f"cores: {machine.cores}"
    yield f"accelerators counted without torch: {machine.accelerators}"
    yield from _torch()


def _torch() -> Iterator[str]:
    try:
        import torch
    except ModuleNotFoundError:
        yield "torch: not installed"
        return
    except (ImportError, OSError) as error:
        yield f"torch: installed, but cannot be imported: {error}"
        return
    yield f"torch: {torch.__version__} (built for CUDA {torch.version.cuda or 'none'})"
    count = torch.cuda.device_count()
    yield f"devices seen by torch: {count or 'CPU only'}"
    for index in range(count):
        yield f"  cuda:{index}: {torch.cuda.get_device_name(index)}"


def _config(choices: Choices, environ: Mapping[str, str]) -> Iterator[str]:
    if choices.file is None:
        yield f"config file: none (default_config.yaml would be read from {config_folder(environ)})"
        return
    yield f"config file: {choices.file}"
    yield from (f"  {text}" for text in _content(choices.file))


def _content(path: Path) -> Sequence[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return [f"cannot be read: {error}"]


def _settings(choices: Choices) -> Iterator[str]:
    yield "launch options:"
    for name, each in choices.resolved.items():
        yield f"  {name}: {'not set' if each.value is None else each.value} ({each.origin.value})"


def _variables(environ: Mapping[str, str]) -> Iterator[str]:
    chosen = sorted(name for name in environ if name.startswith("ACCEL_") or name in _TELLING)
    yield "environment:" if chosen else "environment: no variable that accel reads is set"
    yield from (f"  {name}={environ[name]}" for name in chosen)


_TELLING = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
