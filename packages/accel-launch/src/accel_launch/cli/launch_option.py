"""Declare a launch option: the sources of its value, and the words for a wrong value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import click
from click.core import ParameterSource

from accel_launch.cli.option_types import PAIRS, SWITCH, as_text


@dataclass(slots=True)
class Sources:
    """The sources for reading a command line.

    Args:
        environ: Environment.
        file: Config file.
        reads_file: False for a command that writes the config file.
        problems: Problems found so far.
        entries: Entries from flags of their own, by option.
    """

    environ: Mapping[str, str]
    file: Path | None = None
    reads_file: bool = True
    problems: list[str] = field(default_factory=list)
    #: entries of options that have a flag of their own
    entries: dict[str, dict[str, str]] = field(default_factory=dict)


@final
class LaunchOption(click.Option):
    """An option with its names on the command line, in a config file and in the environment.

    A switch that a file can set has a flag that unsets it.

    Args:
        flag: The long flag.
        type: Type of the value.
        about: Words for the help, with the default at their end.
        short: A short flag, if there is one.
        key: Key in a file. Default: the name. With None no file and no variable can set the option.
        more: Arguments of `click.Option`, and `variable` for another name of the variable.
    """

    name: str
    envvar: str

    def __init__(  # as in OptionType
        self,
        flag: str,
        *,
        type: click.ParamType,  # type: ignore[type-arg]
        about: str,
        short: Sequence[str] = (),
        key: str | None = "",
        **more: Any,
    ) -> None:
        name = flag.removeprefix("--")
        self.key, self.about = name if key == "" else key, about
        self.off = f"--no_{name}" if type is SWITCH and self.key else ""
        variable = more.pop("variable", f"ACCEL_{self.key.upper()}" if self.key else "")
        places = [f"file: {self.key}"] if self.key else []
        places += [f"variable: {variable}"] if variable else []
        super().__init__(
            [name, *short, f"{flag}/{self.off}" if self.off else flag],
            type=type,
            is_flag=type is SWITCH,
            multiple=type is PAIRS,
            envvar=variable,
            default=None,
            help=f"{about} [{'; '.join(places)}]" if places else about,
            **more,
        )

    @property
    def preset(self) -> str:
        """The default in the words of the help, or "" if the value says all."""
        return self.about.partition(" Default: ")[2].removesuffix(".")

    def words(self, value: object) -> list[str]:
        """Return the flag that gives the option a value."""
        if self.type is SWITCH:
            return [self.opts[-1]] if value else self.secondary_opts
        return [self.opts[-1], as_text(value)]

    def read(self, value: object) -> Any:
        """Return the value of this option for a value of Python or a text.

        Raises:
            click.BadParameter: The text is wrong. The error has the expected values.
        """
        return self.type.convert(as_text(value), self, None)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of its variable in the environment that is read. Empty is not set."""
        environ: Mapping[str, str] = ctx.obj.environ
        return environ.get(self.envvar, "").strip() or None

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value of a text. `-n=2` of a short option is 2.

        Raises:
            click.BadParameter: The text is empty, or wrong for its type.
        """
        if value == "":
            raise click.BadParameter("it has no value")
        short = isinstance(value, str) and len(self.opts) > 1
        return super().type_cast_value(ctx, value.removeprefix("=") if short else value)

    def handle_parse_result(self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]) -> Any:
        """Read its value, and note a problem, so that a single error lists all problems.

        Args:
            ctx: Context of the command, whose object notes problems.
            opts: Values by name.
            args: Arguments that are left.
        """
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as error:
            places: dict[ParameterSource | None, str] = {
                ParameterSource.ENVIRONMENT: f"{self.envvar} in the environment",
                ParameterSource.DEFAULT_MAP: f"config file {ctx.obj.file}: {self.key}",
            }
            place = places.get(ctx.get_parameter_source(self.name), self.opts[-1])
            ctx.obj.problems.append(f"{place}: {'expected true or false' if self.is_flag else error.message}")
            ctx.params[self.name] = None
            return None, args
