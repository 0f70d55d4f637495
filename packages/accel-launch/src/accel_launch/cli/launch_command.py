"""Read launch options from the command line, the environment and the config file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from accel_state.errors import CannotRun
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from accel_launch.cli.accelerate_flags import ACCELERATE_OPTIONS, unknown_flag
from accel_launch.cli.entry_option import ENTRY_OPTIONS
from accel_launch.cli.launch_option import LaunchOption, Sources
from accel_launch.cli.options import BY_NAME, OPTIONS, LaunchSettings
from accel_launch.config.variables import variable_problems

#: how a value comes that somebody has set
SET = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)
#: headings of the help, by the option that comes first below each
HEADINGS = {
    "num_processes": "Processes",
    "mixed_precision": "Precision and accumulation",
    "use_fsdp": "Sharding, DeepSpeed and compilation",
    "num_machines": "Several machines",
    "log_dir": "Output and failures",
    "config_file": "Settings, and jobs of a scheduler",
    "as_accelerate": "Script, and help",
}


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """The winning values of a command line.

    Args:
        settings: The values.
        script: The script.
        arguments: Its arguments.
        environ: The environment that was read.
        file: The config file that took part, if any.
        problems: All that is wrong.
    """

    settings: LaunchSettings
    script: str | None
    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    file: Path | None
    problems: tuple[str, ...]


class LaunchCommand(click.Command):
    """A command with launch options. Words after the first word that is no option belong to the script.

    Args:
        name: Name of the command.
        run: Function to call with the resolved options, and with the command's own options by keyword.
        own: Options of this command alone.
        options: Launch options that it takes. Default: all that make sense.
        words: Words for the script in the help; a command without them takes no script.
        writes_file: The command is about to write the config file, so it reads no file, and no variable but its name.
        more: Arguments of `click.Command`.
    """

    def __init__(
        self,
        name: str,
        run: Callable[..., int],
        *,
        own: Sequence[click.Option] = (),
        options: Sequence[LaunchOption] = (),
        words: str = "",
        writes_file: bool = False,
        **more: Any,
    ) -> None:
        script = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar=words, shell_complete=_files)
        options = options or [option for option in OPTIONS if words or option.name not in ("module", "no_python")]
        params = [*own, *options, *ENTRY_OPTIONS, *ACCELERATE_OPTIONS, *([script] if words else [])]
        more.setdefault("help", (run.__doc__ or "").partition("\n")[0])
        super().__init__(name, params=params, **more)
        self._run, self.writes_file = run, writes_file
        self.context_settings = {
            "allow_interspersed_args": not words,
            "help_option_names": ["-h", "--help"],
            # either spelling of a name
            "token_normalize_func": lambda word: word.replace("-", "_"),
        }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a command line, with the config file that it or the environment names.

        Raises:
            CannotRun: The command does not have an option. The words after it cannot be told apart.
        """
        from accel_state.environ import process_environ

        if ctx.obj is None:
            environ = process_environ()
            named = {name: word for name, word in environ.items() if name == BY_NAME["config_file"].envvar}
            ctx.obj = Sources(named if self.writes_file else environ, reads_file=not self.writes_file)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise CannotRun(ctx.command_path, [unknown_flag(error, ctx)]) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with the values of the launch options, and with its own options.

        Raises:
            CannotRun: There is a problem, and the command writes a config file.
        """
        options = resolved(ctx)
        if self.writes_file and options.problems:
            raise CannotRun(ctx.command_path, options.problems)
        own = {name: value for name, value in ctx.params.items() if name not in BY_NAME and name != "words"}
        return self._run(options, **own)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings. No word is divided.

        Args:
            ctx: Context of the command.
            formatter: Formatter that keeps the text.
        """
        # imported for those alone who ask for help
        from textwrap import TextWrapper

        indent = " " * 8
        wrapper = TextWrapper(
            formatter.width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        formatter.write("\nOptions:\n")
        for param in self.get_params(ctx):
            if param.name in HEADINGS:
                formatter.write(f"\n  {HEADINGS[param.name]}:\n")
            flags, about = param.get_help_record(ctx) or ("", "")
            if about:
                formatter.write(f"    {flags}\n{wrapper.fill(about)}\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of a word: files only, after the script."""
        script = ctx.params.get("words")
        return _files(ctx, self, incomplete) if script else super().shell_complete(ctx, incomplete)


def _files(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def resolved(ctx: click.Context) -> ResolvedOptions:
    """Return the options that a context has read."""
    sources: Sources = ctx.obj
    given = {name: value for name in BY_NAME if (value := ctx.params.get(name)) is not None}
    origins = {name: origin for name in given if (origin := ctx.get_parameter_source(name)) in SET}
    if origins.pop("fp16", None):
        precision = given.get("mixed_precision")
        if origins.get("mixed_precision") is ParameterSource.COMMANDLINE and precision != "fp16":
            sources.problems.append(
                f"--fp16 means --mixed_precision fp16, found also --mixed_precision {precision}: give one of the two"
            )
        given["mixed_precision"], origins["mixed_precision"] = "fp16", ParameterSource.COMMANDLINE
    settings = LaunchSettings(**{name: given[name] for name in origins}, origins=origins)
    problems = (*sources.problems, *variable_problems(sources.environ, settings))
    script, *arguments = ctx.params.get("words") or (None,)
    return ResolvedOptions(settings, script, tuple(arguments), sources.environ, sources.file, problems)


def resolve_options(tokens: Sequence[str], environ: Mapping[str, str]) -> ResolvedOptions:
    """Return the options of a command line, with an environment and the config file that one of them names.

    Raises:
        CannotRun: An option is unknown.
    """
    command = LaunchCommand("launch", lambda **_: 0, words="SCRIPT", add_help_option=False)
    return resolved(command.make_context("accel launch", [*tokens], obj=Sources(environ)))
