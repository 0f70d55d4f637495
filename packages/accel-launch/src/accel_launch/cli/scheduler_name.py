"""Declare the type of the name of a scheduler, to which each installed package may add names."""

from typing import Any, final

import click
from click.shell_completion import CompletionItem

from accel_launch.cli.suggest import did_you_mean
from accel_launch.job.schedulers import scheduler_names


@final
class SchedulerName(click.ParamType):  # type: ignore[type-arg] # as in OptionType
    """The name of a scheduler that an installed package has. No scheduler is imported to read it."""

    name = "scheduler"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name itself.

        Args:
            value: The name.
            param: Option that is read.
            ctx: Context of the command.

        Raises:
            click.BadParameter: No package has it. The error has the nearest name.
        """
        names = scheduler_names()
        if value in names:
            return str(value)
        return self.fail(
            f"there is no scheduler {value!r}{did_you_mean(value, names)}; the schedulers are: {', '.join(names)}",
            param,
            ctx,
        )

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with a text.

        Args:
            ctx: Context of the command.
            param: Option that is completed.
            incomplete: The text.
        """
        return [CompletionItem(name) for name in scheduler_names() if name.startswith(incomplete)]
