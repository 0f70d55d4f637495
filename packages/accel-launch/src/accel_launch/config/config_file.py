"""Find and read a config file with accel's own keys, and Accelerate's as far as accel has what they ask for.

Values are kept as the text that a flag would have, so that the types of the options read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from accel_state.environ import HOME
from accel_state.errors import CannotRun

from accel_launch.cli.launch_option import Sources
from accel_launch.cli.option_types import PAIRS, SWITCH, as_text
from accel_launch.cli.options import BY_KEY, BY_NAME
from accel_launch.cli.suggest import did_you_mean
from accel_launch.config.accelerate_config import (
    ACCELERATE_KEYS,
    COMPUTE_ENVIRONMENT,
    DISTRIBUTED_TYPE,
    FALSE_WORDS,
    KNOWN,
    LEGACY_DYNAMO,
    LEGACY_FP16,
    LOCAL,
    SAGEMAKER,
    SAGEMAKER_KEYS,
    unsupported,
)
from accel_launch.config.file_permissions import problem_of_open_file

if TYPE_CHECKING:
    import yaml

DEFAULT_NAME = "default_config.yaml"
#: the options that say what a distributed type says
_SWITCHES = {"MULTI_CPU": "cpu", "FSDP": "use_fsdp", "DEEPSPEED": "use_deepspeed"}


def config_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the config file.

    It is $ACCEL_HOME, else accel in $HF_HOME, else huggingface/accel in $XDG_CACHE_HOME, else in ~/.cache.
    """
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~", ".cache")
    hugging_face = environ.get("HF_HOME") or Path(cache, "huggingface")
    return Path(environ.get(HOME) or Path(hugging_face, "accel")).expanduser()


def read_defaults(named: str | None, sources: Sources) -> dict[str, Any]:
    """Return the values of the named config file, or of the default file, by the names of options.

    Problems of the file are added to those of the sources.
    """
    default = config_folder(sources.environ) / DEFAULT_NAME
    sources.file = Path(named) if named is not None else default if default.is_file() else None
    if sources.file is None or not sources.reads_file:
        return {}
    try:
        values, problems = translate(read_content(sources.file))
    except CannotRun as error:
        values, problems = {}, list(error.reasons)
    sources.problems += [f"config file {sources.file}: {problem}" for problem in problems]
    # an option with pairs may be repeated, and takes a list
    return {name: [text] if BY_NAME[name].type is PAIRS else text for name, text in values.items()}


def read_content(path: Path) -> Mapping[object, object]:
    """Return the names and values of a file as they are written. Values are texts.

    Raises:
        CannotRun: The file cannot be read, every user may write it, or it is not a list of names and values.
    """
    import yaml

    content = None
    try:
        with path.open(encoding="utf-8") as file:
            # Of the open file: another one could take its name between a look and the reading.
            problem = problem_of_open_file(file.fileno(), path)
            text = file.read() if problem is None else ""
        if path.suffix == ".json":
            text = text.expandtabs()
        content = yaml.load(text, _text_loader())  # a SafeLoader; JSON is YAML too, except for tabs
        if content is not None and not isinstance(content, dict):
            problem = f"expected lines of the form name: value, found a {type(content).__name__}"
    except FileNotFoundError:
        problem = f"there is no such file (looked from {Path.cwd()})"
    except (OSError, UnicodeDecodeError) as error:
        problem = f"it cannot be read: {error}"
    except RecursionError:
        problem = "not read: too many brackets within each other"
    except (yaml.YAMLError, ValueError) as error:
        problem = f"not YAML or JSON: {' '.join(str(error).split())}"
    if problem is not None:
        raise CannotRun(f"config file {path}", [problem])
    return content or {}


@cache
def _text_loader() -> type[yaml.SafeLoader]:
    """Return a loader for which values are texts: only null is nothing, and no word is a number or a time."""
    import yaml

    class TextLoader(yaml.SafeLoader):
        """A loader of values as text that takes each key once."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            """Return a mapping, or raise ValueError if it has a key twice, of which YAML keeps the last value."""
            counts = Counter(str(key.value) for key, _ in node.value)
            twice = [f"{name!r} is there {count} times: keep one" for name, count in counts.items() if count > 1]
            if twice:
                raise ValueError("; ".join(twice))
            return super().construct_mapping(node, deep)

    TextLoader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return TextLoader


def translate(content: Mapping[object, object]) -> tuple[dict[str, str], list[str]]:
    """Return the settings of a file's content, as texts by the names of options, and the problems of all others."""
    values: dict[str, str] = {}
    problems: list[str] = []
    place = as_text(content.get(COMPUTE_ENVIRONMENT) or LOCAL)
    for key, value in content.items():
        if key in BY_KEY:
            if key == "mixed_precision" and as_text(value).lower() in FALSE_WORDS:
                value = "no"
            # Accelerate writes -1 for a count that nobody chose.
            if value not in (None, {}) and not (key == "num_processes" and as_text(value) == "-1"):
                values[BY_KEY[str(key)].name] = as_text(value)
        elif key in ACCELERATE_KEYS:
            if (why := unsupported(str(key), value)) is not None:
                problems.append(f"{key}: {value!r} is not supported: {why}; remove the line")
        elif key in SAGEMAKER_KEYS:
            if place != SAGEMAKER and value is not None:
                problems.append(
                    f"{key}: {value!r} is for SageMaker: set {COMPUTE_ENVIRONMENT}: {SAGEMAKER}, or remove the line"
                )
        elif key not in KNOWN:
            meant = did_you_mean(str(key), [*BY_KEY, *KNOWN])
            problems.append(f"unknown key {str(key)!r}{f'{meant} If not,' if meant else ':'} remove the line")
    try:
        asked = SWITCH.convert(as_text(content.get(LEGACY_FP16) or "no"), None, None)
        if asked and values.setdefault("mixed_precision", "fp16") != "fp16":
            contradiction = f"contradicts mixed_precision: {values['mixed_precision']}; remove one of the two"
            problems.append(f"{LEGACY_FP16}: true {contradiction}")
    except click.BadParameter:
        problems.append(f"{LEGACY_FP16}: expected true or false, found {content[LEGACY_FP16]!r}")
    if content.get(LEGACY_DYNAMO) is not None and "dynamo_config" not in values:
        values["dynamo_config"] = f"backend={as_text(content[LEGACY_DYNAMO])}"
    if place == SAGEMAKER:
        problems += _sagemaker(content, values)
    elif place == LOCAL:
        problems += _distributed_type(content, values)
    else:
        problems.append(f"{COMPUTE_ENVIRONMENT}: {place!r} is not supported: expected {LOCAL} or {SAGEMAKER}")
    return values, problems


def _sagemaker(content: Mapping[object, object], values: dict[str, str]) -> Sequence[str]:
    """Turn Accelerate's settings of SageMaker into options of a job that is submitted there."""
    from accel_launch.job.schedulers import load_scheduler

    try:
        options, problems = load_scheduler("sagemaker").options_of_config(content)
    except CannotRun as error:
        return error.reasons
    values["submit"] = "sagemaker"
    if options:
        values["submit_options"] = as_text(options)
    values.pop("num_machines", None)  # the count of instances is among the options
    return list(problems)


def _distributed_type(content: Mapping[object, object], values: dict[str, str]) -> Iterator[str]:
    kind = as_text(content.get(DISTRIBUTED_TYPE))
    if kind in _SWITCHES:
        values[_SWITCHES[kind]] = "true"
    elif kind.lower() in FALSE_WORDS:
        values.setdefault("num_processes", "1")
        counts = [
            f"{name}: {values[name]}" for name in ("num_processes", "num_machines") if values.get(name, "1") != "1"
        ]
        if counts:
            yield (
                f"{DISTRIBUTED_TYPE}: NO means one process, found {' and '.join(counts)};"
                f" remove {DISTRIBUTED_TYPE}, or set it to MULTI_GPU or MULTI_CPU"
            )
    elif kind not in ("MULTI_GPU", "None"):
        yield (
            f"{DISTRIBUTED_TYPE}: {kind!r} is not supported: expected NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED;"
            " accel launch cannot do more yet"
        )
