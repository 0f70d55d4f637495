"""A command that takes the launch options: reads them from the line, the environment and the config file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from accel_state.errors import CannotRun
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from accel_launch.cli.accelerate_flags import ACCELERATE_OPTIONS, unknown_flag
from accel_launch.cli.options import BY_NAME, OPTIONS, LaunchOption
from accel_launch.config.settings import LaunchSettings, Origin, join_pairs, variable_problems

_ORIGINS = {
    ParameterSource.COMMANDLINE: Origin.FLAG,
    ParameterSource.ENVIRONMENT: Origin.ENVIRONMENT,
    ParameterSource.DEFAULT_MAP: Origin.FILE,
}
#: every spelling of every flag that is known
FLAGS = frozenset(flag for one in (*OPTIONS, *ACCELERATE_OPTIONS) for flag in (*one.opts, *one.secondary_opts))


@dataclass(slots=True)
class Sources:
    """What a command line is read with: an environment, and what was found wrong so far."""

    environ: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    file: Path | None = None
    reads_file: bool = True
    flags: Collection[str] = FLAGS


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """The winning values, the script with its arguments, the file that took part, and all that is wrong."""

    settings: LaunchSettings
    script: str | None
    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    file: Path | None
    problems: tuple[str, ...]
    #: those of the line itself
    line_problems: tuple[str, ...] = ()

    def given(self) -> list[str]:
        """The options that were given as flags."""
        return [name for name, origin in self.settings.origins.items() if origin is Origin.FLAG]


class LaunchCommand(click.Command):
    """A command with launch options; after the first word that is none, nothing is looked at.

    `own` are its own options, and `omit` launch options that it has not, which it refuses in words.
    """

    def __init__(
        self,
        name: str,
        run: Callable[..., int],
        *,
        own: Sequence[click.Option] = (),
        omit: Sequence[str] = (),
        **more: Any,
    ) -> None:
        words = click.Argument(
            ["words"],
            nargs=-1,
            type=click.UNPROCESSED,
            metavar=more.pop("words", ""),
            shell_complete=lambda ctx, param, incomplete: [CompletionItem(incomplete, type="file")],
        )
        self.omit = omit
        super().__init__(name, callback=run, params=[*own, *OPTIONS, *ACCELERATE_OPTIONS, words], **more)
        self.context_settings = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads a line, with the config file that it or the environment names.

        Raises: CannotRun at an option that nobody knows: what follows it cannot be told apart.
        """
        from accel_state.environ import process_environ

        if ctx.obj is None:
            ctx.obj = Sources(process_environ())
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = {flag: flag for one in self._launch_options() for flag in (*one.opts, *one.secondary_opts)}
            problem = unknown_flag(error.option_name, known)
        except click.BadOptionUsage as error:
            problem = _usage_problem(error, self._launch_options())
        raise CannotRun(f"accel {self.name}", [problem])

    def _launch_options(self) -> list[LaunchOption]:
        return [one for one in self.params if isinstance(one, LaunchOption)]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What a shell offers for an option: nothing of ours after the script."""
        if ctx.params.get("words"):
            return [CompletionItem(incomplete, type="file")]
        hidden = {flag for one in OPTIONS if one.name in self.omit for flag in (*one.opts, *one.secondary_opts)}
        return [item for item in super().shell_complete(ctx, incomplete) if item.value not in hidden]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options that it has, one below the other."""
        shown = [one for one in self.get_params(ctx) if isinstance(one, click.Option) and one.name not in self.omit]
        records = [record for one in shown if (record := one.get_help_record(ctx)) is not None]
        with formatter.section("options"):
            formatter.width = 100
            for flags, about in records:
                formatter.write(f"{'':{formatter.current_indent}}{flags}\n")
                with formatter.indentation():
                    formatter.indent()
                    formatter.write_text(about)
                    formatter.dedent()


def _usage_problem(error: click.BadOptionUsage, known: Sequence[LaunchOption]) -> str:
    flag = error.option_name
    option = next((one for one in known if flag in one.opts), None)
    if "requires an argument" in error.message:
        expected = option.kind.expected if option is not None else "as for accelerate launch"
        return f"{flag} needs a value ({expected}), found the end of the line"
    return f"{flag} takes no value"


def read_config_file(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Callback of --config_file, which is read first: the values of the file become defaults."""
    from accel_launch.config.config_file import default_config, read_config

    sources: Sources = ctx.obj
    sources.file = Path(value) if value is not None else default_config(sources.environ)
    if sources.file is not None and sources.reads_file and not ctx.resilient_parsing:
        try:
            found = read_config(sources.file)
        except CannotRun as error:
            sources.problems += [f"{error.what}: {reason}" for reason in error.reasons]
        else:
            sources.problems += found.problems
            ctx.default_map = {name: [one] if name == "submit_options" else one for name, one in found.values.items()}
    return value


BY_NAME["config_file"].callback = read_config_file


def resolved(ctx: click.Context) -> ResolvedOptions:
    """What a context has found."""
    sources: Sources = ctx.obj
    values = {name: ctx.params.get(name) for name in BY_NAME}
    origins = {
        name: origin
        for name, value in values.items()
        if value not in (None, ()) and (origin := _ORIGINS.get(ctx.get_parameter_source(name))) is not None  # type: ignore[arg-type] # None has no origin
    }
    if values["submit_options"]:
        values["submit_options"] = join_pairs(values["submit_options"])
    if values.pop("fp16"):
        del origins["fp16"]
        flagged = origins.get("mixed_precision") is Origin.FLAG
        if flagged and values["mixed_precision"] != "fp16":
            found = f"found also --mixed_precision {values['mixed_precision']}: give one of the two"
            sources.problems.append(f"--fp16 means --mixed_precision fp16, {found}")
        values["mixed_precision"], origins["mixed_precision"] = "fp16", Origin.FLAG
    else:
        origins.pop("fp16", None)
    settings = LaunchSettings.of(values, origins)
    given = [name for name, origin in origins.items() if origin is Origin.FLAG]
    problems = (*sources.problems, *variable_problems(sources.environ, given))
    script, *arguments = ctx.params["words"] or (None,)
    line = tuple(one for one in sources.problems if " in the environment: " not in one)
    return ResolvedOptions(settings, script, tuple(arguments), sources.environ, sources.file, problems, line)


def resolve_options(tokens: Sequence[str], environ: Mapping[str, str]) -> ResolvedOptions:
    """What a command line of launch options says, with an environment and the config file that either of them names.

    Raises: CannotRun at an option that nobody knows.
    """
    command = LaunchCommand("launch", lambda **_: 0, add_help_option=False)
    return resolved(command.make_context("launch", [*tokens], obj=Sources(environ)))


def stray_words(options: ResolvedOptions, command: LaunchCommand) -> list[str]:
    """The problems of a line that may only hold options, and not those that the command has not."""
    name = f"accel {command.name}"
    stray = [] if options.script is None else [f"{name} takes options only, found {options.script!r}"]
    given = [one for one in options.given() if one in command.omit]
    return [*stray, *(f"{name} takes no {one}" for one in given)]
