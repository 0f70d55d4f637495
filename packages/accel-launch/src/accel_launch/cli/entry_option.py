"""Declare flags that are one entry each of an option with names and values, as `accelerate launch` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from accel_launch.config.option_entries import ENTRIES, PREFIX, SWITCHES, normalised


def _entry_option(whole: str, entry: str) -> click.Option:
    """Return a flag such as --fsdp_min_num_params 1000, which the option `whole` takes among its entries."""

    def keep(ctx: click.Context, option: click.Parameter, value: object) -> None:
        if value is not None:
            ctx.obj.entries.setdefault(whole, {})[entry] = str(value)

    flag = f"{PREFIX[whole]}{entry}"
    return click.Option(
        [flag, f"--{flag}"],
        is_flag=entry in SWITCHES,
        hidden=True,
        expose_value=False,
        is_eager=True,
        default=None,
        callback=keep,
    )


#: an option by itself
_OWN = "gradient_accumulation_steps"
ENTRY_OPTIONS = tuple(
    _entry_option(whole, entry) for whole, entries in ENTRIES.items() for entry in entries if entry != _OWN
)


def with_entries(ctx: click.Context, option: click.Parameter, values: Any) -> Mapping[str, str] | None:
    """Return the entries of an option from its own flags, a variable or the file, and from flags for single entries.

    Of several values for one entry the last one counts.

    Args:
        ctx: Context of the command, whose object keeps entries.
        option: Option to read.
        values: Entries of its own flags, the variable or the file.

    Raises:
        click.BadParameter: A name or a value is unknown.
    """
    name = str(option.name)
    single = ctx.obj.entries.get(name, {})
    if single:
        ctx.set_parameter_source(name, ParameterSource.COMMANDLINE)
    entries = {key: value for pairs in values or () for key, value in pairs.items()} | single
    if name in ENTRIES:
        entries, problems = normalised(name, entries)
        if problems:
            raise click.BadParameter("; ".join(problems))
    return entries or None
