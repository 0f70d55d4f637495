"""Return the settings that win as lines of a config file, each with its origin."""

from collections.abc import Iterator

from click.core import ParameterSource

from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.options import BY_NAME, ORIGINS


def setting_lines(options: ResolvedOptions, *, origins: bool) -> Iterator[str]:
    """Yield a line for each option. All lines together are a config file.

    Options that no file can set are comments. An option of a single launch, such as dry_run, has a line if it is set.

    Args:
        options: Options to show.
        origins: Add to each line who set the option.
    """
    for name, option in BY_NAME.items():
        origin, value = options.settings.origin(name), getattr(options.settings, name)
        if name == "config_file" and options.file is not None:
            value = str(options.file)
        elif not option.key and name != "config_file" and origin is ParameterSource.DEFAULT:
            continue
        words = ORIGINS[origin]
        if origin is ParameterSource.ENVIRONMENT:
            words += f" {option.envvar}"
        elif origin is ParameterSource.DEFAULT_MAP:
            path = str(options.file)
            words += f" {path if path.isprintable() else repr(path)}"
        elif origin is ParameterSource.DEFAULT and value is None and option.preset:
            words += f": {option.preset}"
        line = f"{'' if option.key else '# '}{option.key or name}: {as_yaml(value)}"
        yield f"{line}  # {words}" if origins else line


def as_yaml(value: object) -> str:
    """Return a value as YAML in flow style, without a line break at its end.

    A text with line breaks takes several lines.
    """
    import yaml

    text = yaml.safe_dump(value, width=float("inf"), allow_unicode=True, default_flow_style=True)
    return str(text).removesuffix("\n").removesuffix("\n...")
