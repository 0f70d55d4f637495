"""The settings that win, as lines of a config file, each with where it came from."""

from collections.abc import Iterator
from dataclasses import asdict

from accel_launch.job import Choices
from accel_launch.options import BY_NAME, Option
from accel_launch.settings import Origin, launch_settings


def setting_lines(choices: Choices, *, origins: bool) -> Iterator[str]:
    """One line for each option. What a file may not say is a comment, so that all of them together are a config file.

    An option of one launch only, such as dry_run, has a line where somebody gave it.
    """
    values = asdict(launch_settings(choices.resolved))
    values["config_file"] = str(choices.file) if choices.file is not None else None
    for name, each in choices.resolved.items():
        option = BY_NAME[name]
        if option.key is None and name != "config_file" and each.origin is Origin.DEFAULT:
            continue
        comment = "" if option.key is not None else "# "
        origin = f"  # {_words(option, each.origin, choices)}" if origins else ""
        if origins and values[name] is None and option.preset:
            origin += f": {option.preset}"
        yield f"{comment}{option.key or name}: {as_yaml(values[name])}{origin}"


def _words(option: Option, origin: Origin, choices: Choices) -> str:
    if origin is Origin.ENVIRONMENT:
        return f"environment {option.variable}"
    if origin is Origin.FILE:
        path = str(choices.file)
        return f"config file {path if path.isprintable() else repr(path)}"
    return str(origin.value)


def as_yaml(value: object) -> str:
    """A plain value as it stands in a file, in one line."""
    import yaml

    return str(yaml.safe_dump(value, width=float("inf"), allow_unicode=True)).removesuffix("\n").removesuffix("\n...")
