"""Finds and reads a config file: accel's own keys, and Accelerate's as far as they ask for something accel does."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from accel_state.environ import HOME
from accel_state.errors import CannotRun

from accel_launch.cli.option_types import SWITCH, Value
from accel_launch.cli.options import BY_KEY
from accel_launch.cli.suggest import did_you_mean
from accel_launch.config.accelerate_config import (
    COMPUTE_ENVIRONMENT,
    DISTRIBUTED_TYPE,
    KNOWN,
    LEGACY_FP16,
    LOCAL,
    MEANS_NOTHING,
    SAGEMAKER,
    SAGEMAKER_KEYS,
    unsupported,
)
from accel_launch.config.file_permissions import problem_of_open_file

# YAML 1.1 takes 010 for 8, and 08 for a text.
_OCTAL = re.compile(r"[-+]?0[0-9_]+(\.[0-9_]*)?")

DEFAULT_NAME = "default_config.yaml"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What one config file says: values by option name, and everything in it that cannot be followed."""

    path: Path
    values: Mapping[str, Value]
    problems: tuple[str, ...] = ()


def config_folder(environ: Mapping[str, str]) -> Path:
    """$ACCEL_HOME, else accel in $HF_HOME, else huggingface/accel in $XDG_CACHE_HOME, else in ~/.cache."""
    if environ.get(HOME):
        return Path(environ[HOME]).expanduser()
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser() / "accel"
    home = environ.get("HOME")
    cache = environ.get("XDG_CACHE_HOME") or (Path(home) if home else Path.home()) / ".cache"
    return Path(cache).expanduser() / "huggingface" / "accel"


def default_config(environ: Mapping[str, str]) -> Path | None:
    """The config file used when none is named, or None where there is none."""
    path = config_folder(environ) / DEFAULT_NAME
    return path if path.is_file() else None


def read_config(path: Path) -> ConfigFile:
    """The values of one file; what is wrong with them is in `problems`.

    Raises: CannotRun if the file cannot be read, could be anybody's, or is not a list of names and values.
    """
    values, problems = interpret(read_content(path))
    return ConfigFile(path, values, tuple(f"config file {path}: {problem}" for problem in problems))


def read_content(path: Path) -> Mapping[object, object]:
    """The names and values of one file as they stand there, whatever they mean.

    Raises: CannotRun if the file cannot be read, could be anybody's, or is not a list of names and values.
    """
    content = _parse(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CannotRun(
            f"config file {path}",
            [f"expected lines of the form name: value, found a {type(content).__name__}"],
        )
    return content


def _parse(path: Path) -> object:
    text, what = _read(path), f"config file {path}"
    try:
        if path.suffix == ".json":
            import json

            return json.loads(text, object_pairs_hook=partial(_once, path)) if text.strip() else None
        import yaml

        node = yaml.compose(text, yaml.SafeLoader)
        if isinstance(node, yaml.MappingNode):
            _once(path, [(key.value, None) for key, _ in node.value])
            values = [value for _, value in node.value if isinstance(value, yaml.ScalarNode) and value.style is None]
            marks = [(one.start_mark, one.value) for one in values if _OCTAL.fullmatch(one.value)]
            if marks:
                expected = "expected a number without a leading zero, or a text in quotes, found"
                wrong = [f"line {at.line + 1}, column {at.column + 1}: {expected} {number}" for at, number in marks]
                raise CannotRun(what, wrong)
        return yaml.safe_load(text)
    except RecursionError:
        raise CannotRun(what, ["not read: too many brackets within each other"]) from None
    # A date such as 2026-99-99 is a ValueError, which the library lets through; and so are errors of JSON.
    except Exception as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        if isinstance(error, CannotRun) or type(error).__module__.partition(".")[0] not in ("json", "yaml", "builtins"):
            raise
        raise CannotRun(what, [f"not {kind}: {' '.join(str(error).split())}"]) from None


def _once(path: Path, pairs: Sequence[tuple[object, object]]) -> dict[object, object]:
    """Raises: CannotRun if a key is there twice: the formats keep the last one, and say nothing."""
    counts = Counter(name for name, _ in pairs)
    twice = [f"{name!r} is there {count} times: keep one" for name, count in counts.items() if count > 1]
    if twice:
        raise CannotRun(f"config file {path}", twice)
    return dict(pairs)


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            # Of the open file: another one could take its name between a look and the reading.
            problem = problem_of_open_file(file.fileno(), path)
            if problem is not None:
                raise CannotRun(f"config file {path}", [problem])
            return file.read()
    except FileNotFoundError:
        raise CannotRun(f"config file {path}", [f"there is no such file (looked from {Path.cwd()})"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRun(f"config file {path}", [f"it cannot be read: {error}"]) from None


def interpret(content: Mapping[object, object]) -> tuple[dict[str, Value], list[str]]:
    """The option values in a file's content, and every problem with it."""
    values: dict[str, Value] = {}
    problems: list[str] = []
    where = content.get(COMPUTE_ENVIRONMENT)
    remote = where == SAGEMAKER
    for key, value in content.items():
        if key in BY_KEY:
            _own(str(key), value, values, problems)
        elif key in MEANS_NOTHING:
            why = unsupported(str(key), value)
            if why is not None:
                problems.append(f"{key}: {value!r} is not supported: {why}; remove the line")
        elif key in SAGEMAKER_KEYS:
            if not remote and value is not None:
                problems.append(
                    f"{key}: {value!r} is for SageMaker: set {COMPUTE_ENVIRONMENT}: {SAGEMAKER}, or remove the line"
                )
        elif key not in KNOWN:
            meant = did_you_mean(str(key), [*BY_KEY, *KNOWN])
            problems.append(f"unknown key {str(key)!r}{f'{meant} If not,' if meant else ':'} remove the line")
    _legacy_fp16(content, values, problems)
    if remote:
        _sagemaker(content, values, problems)
    elif where in (None, LOCAL):
        _distributed_type(content, values, problems)
    else:
        problems.append(f"{COMPUTE_ENVIRONMENT}: {where!r} is not supported: expected {LOCAL} or {SAGEMAKER}")
    return values, problems


def _sagemaker(content: Mapping[object, object], values: dict[str, Value], problems: list[str]) -> None:
    """What Accelerate has of SageMaker is what a job that is handed to it is to know."""
    from accel_launch.job.schedulers import load_scheduler

    try:
        options, wrong = load_scheduler("sagemaker").options_of_config(content)
    except CannotRun as error:
        options, wrong = {}, error.reasons
    problems += wrong
    values["submit"] = "sagemaker"
    if options:
        values["submit_options"] = ",".join(f"{name}={value}" for name, value in options.items())
    values.pop("num_machines", None)  # the count of instances is among the options


def _own(key: str, value: object, values: dict[str, Value], problems: list[str]) -> None:
    option = BY_KEY[key]
    # Accelerate writes -1 for a count that nobody chose.
    if value is None or (key == "num_processes" and value == -1):
        return
    read = option.kind.read(value)
    if read is None:
        problems.append(f"{key}: expected {option.kind.expected}, found {value!r}")
    else:
        values[option.name] = read


def _legacy_fp16(content: Mapping[object, object], values: dict[str, Value], problems: list[str]) -> None:
    asked = content.get(LEGACY_FP16)
    if asked is None:
        return
    on = SWITCH.read(asked)
    if on is None:
        problems.append(f"{LEGACY_FP16}: expected {SWITCH.expected}, found {asked!r}")
    elif on and values.setdefault("mixed_precision", "fp16") != "fp16":
        problems.append(
            f"{LEGACY_FP16}: true contradicts mixed_precision: {values['mixed_precision']}; remove one of the two"
        )


def _distributed_type(content: Mapping[object, object], values: dict[str, Value], problems: list[str]) -> None:
    kind = content.get(DISTRIBUTED_TYPE)
    if kind in ("NO", "no", False):
        values.setdefault("num_processes", 1)
        several = [f"{name}: {values[name]}" for name in ("num_processes", "num_machines") if values.get(name, 1) != 1]
        if several:
            problems.append(
                f"{DISTRIBUTED_TYPE}: NO means one process, found {' and '.join(several)};"
                f" remove {DISTRIBUTED_TYPE}, or set it to MULTI_GPU or MULTI_CPU"
            )
    elif kind == "MULTI_CPU":
        values["cpu"] = True
    elif kind not in (None, "MULTI_GPU"):
        problems.append(
            f"{DISTRIBUTED_TYPE}: {kind!r} is not supported: expected NO, MULTI_CPU or MULTI_GPU;"
            " accel launch cannot do more yet"
        )
