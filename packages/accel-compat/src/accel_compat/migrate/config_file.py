"""Rewrites a config file of Accelerate in accel's own keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from accel_launch.cli.launch_command import resolve_options
from accel_launch.cli.option_types import as_text
from accel_launch.cli.options import BY_NAME
from accel_launch.config.accelerate_config import COMPUTE_ENVIRONMENT, DISTRIBUTED_TYPE, SAGEMAKER
from accel_launch.config.config_writer import HEADER, file_text
from accel_launch.config.sharding_config import NAMES, normalised

from accel_compat.migrate.report import Kind, Note, Rewritten
from accel_compat.migrate.shell_commands import rewrite_commands

_COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_COMMENT_AFTER = re.compile(r"^[ \t]*[^#\s].*?[ \t](#.*)$", re.MULTILINE)
_SETTING = re.compile(rf"^(?:{DISTRIBUTED_TYPE}|{COMPUTE_ENVIRONMENT})[ \t]*:", re.MULTILINE)


def rewrite_config(path: Path, text: str) -> Rewritten:
    """The text of a config file in accel's keys, or another file's text with accel's commands.

    A file that asks for something that accel cannot do stays as it is.
    """
    content = _content(text)
    if not _is_config(content):
        return _rewrite_other(text, content)
    if content.get(COMPUTE_ENVIRONMENT) == SAGEMAKER:
        reads = f"accel launch --config_file {path.name} reads this file, and submits the job to SageMaker"
        return Rewritten(text, (Note(1, Kind.DIFFERENT, f"{reads}; see docs/guides/launching.md"),))
    options = resolve_options(["--config_file", str(path)], {})
    if options.problems:
        reasons = [problem.removeprefix(f"config file {path}: ") for problem in options.problems]
        return Rewritten(text, tuple(Note(_line(text, why), Kind.BY_HAND, why) for why in reasons))
    settings = options.settings
    said = {name: getattr(settings, name) for name in settings.origins if name != "config_file"}
    new = file_text(said, path)
    if yaml.safe_load(new) == content:
        return Rewritten(text)
    comments = [] if path.suffix == ".json" else _COMMENT_LINE.findall(text)
    kept = "".join(f"{line.strip()}\n" for line in comments if f"{line.strip()}\n" != HEADER)
    new = new.replace(HEADER, f"{HEADER}{kept}", 1)
    notes = [Note(1, Kind.CHANGED, "rewritten in accel's own keys")]
    own = {str(BY_NAME[name].key) for name in said}
    dropped = [str(key) for key in content if key not in own and key != DISTRIBUTED_TYPE]
    dropped += [
        f"{key}.{name}"
        for key, entries in content.items()
        if key in NAMES and isinstance(entries, Mapping)
        for name, value in entries.items()
        # alone it is neither a setting nor a problem
        if normalised(str(key), {str(name): as_text(value)}) == ({}, [])
    ]
    if dropped:
        notes.append(Note(1, Kind.CHANGED, f"left out, for they set nothing here: {', '.join(dropped)}"))
    if path.suffix != ".json":
        lost = [found[1] for found in _COMMENT_AFTER.finditer(text)]
        notes += [Note(1, Kind.BY_HAND, f"a comment behind a value is left out: {words}") for words in lost]
    return Rewritten(new, tuple(notes))


def _content(text: str) -> Any:
    """What a text holds as YAML, of which JSON is a part; None if it is no YAML."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return None


def _is_config(content: Any) -> bool:
    """Whether a file is one that `accelerate config` could have written."""
    return isinstance(content, Mapping) and (DISTRIBUTED_TYPE in content or COMPUTE_ENVIRONMENT in content)


def _rewrite_other(text: str, content: Any) -> Rewritten:
    """The text of a file for another program, such as a workflow, with accel's commands."""
    new = rewrite_commands(text)
    if (content is None) != (_content(new.text) is None):
        return Rewritten(text, (Note(1, Kind.BY_HAND, "commands in this file could not be rewritten safely"),))
    if content is None and (found := _SETTING.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        words = "settings in a file of several documents, or of no YAML: put them into a file of their own"
        return Rewritten(new.text, (*new.notes, Note(line, Kind.BY_HAND, words)))
    return new


def _line(text: str, words: str) -> int:
    """The line of the key that a problem begins with."""
    found = re.search(rf"^\W*{re.escape(words.partition(':')[0])}\W*:", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found is not None else 1
