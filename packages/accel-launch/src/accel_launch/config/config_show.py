"""The settings that win, as lines of a config file, each with where it came from."""

from collections.abc import Iterator

from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.options import BY_NAME, LaunchOption
from accel_launch.config.settings import Origin


def setting_lines(options: ResolvedOptions, *, origins: bool) -> Iterator[str]:
    """One line for each option. What a file may not say is a comment, so that all of them together are a config file.

    An option of one launch only, such as dry_run, has a line if somebody gave it.
    """
    for name, option in BY_NAME.items():
        origin = options.settings.origin(name)
        if name == "fp16" or (not option.key and name != "config_file" and origin is Origin.DEFAULT):
            continue
        value = getattr(options.settings, name)
        if name == "config_file" and options.file is not None:
            value = str(options.file)
        comment = "" if option.key else "# "
        words = f"  # {_words(option, origin, options)}" if origins else ""
        if origins and value is None and option.preset:
            words += f": {option.preset}"
        yield f"{comment}{option.key or name}: {as_yaml(value)}{words}"


def _words(option: LaunchOption, origin: Origin, options: ResolvedOptions) -> str:
    if origin is Origin.ENVIRONMENT:
        return f"environment {option.envvar}"
    if origin is Origin.FILE:
        path = str(options.file)
        return f"config file {path if path.isprintable() else repr(path)}"
    return str(origin.value)


def as_yaml(value: object) -> str:
    """A plain value as it stands in a file, in one line."""
    import yaml

    return str(yaml.safe_dump(value, width=float("inf"), allow_unicode=True)).removesuffix("\n").removesuffix("\n...")
