"""Declare flags that are one entry each of an option with names and values, as `accelerate launch` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import click
from click.core import ParameterSource

from accel_launch.cli.launch_option import Sources
from accel_launch.config.sharding_config import NAMES, PREFIX, SWITCHES, normalised


@final
class PartOption(click.Option):
    """A flag such as --fsdp_min_num_params 1000, which the option `whole` takes among its entries."""

    def __init__(self, whole: str, part: str) -> None:
        self.whole, self.part = whole, part
        flag = f"{PREFIX[whole]}{part}"
        declared = [flag, f"--{flag}"]
        super().__init__(
            declared, is_flag=part in SWITCHES, hidden=True, expose_value=False, is_eager=True, default=None
        )

    def handle_parse_result(self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]) -> Any:
        """Record the value.

        Args:
            ctx: Context of the command, whose object keeps entries.
            opts: Values by name.
            args: Arguments that are left.
        """
        value = opts.get(str(self.name))
        if value is not None:
            ctx.obj.parts.setdefault(self.whole, {})[self.part] = str(value)
        return None, args


#: an option by itself
_OWN = "gradient_accumulation_steps"
PART_OPTIONS = tuple(PartOption(whole, part) for whole, parts in NAMES.items() for part in parts if part != _OWN)


def with_parts(ctx: click.Context, option: click.Parameter, values: Any) -> Mapping[str, str] | None:
    """Return the entries of an option from its own flags, a variable or the file, and from flags for single entries.

    Args:
        ctx: Context of the command, whose object keeps entries.
        option: Option to read.
        values: Entries of its own flags, the variable or the file.

    Raises:
        click.BadParameter: A name or a value is unknown.
    """
    sources: Sources = ctx.obj
    parts = sources.parts.get(str(option.name), {})
    if parts:
        ctx.set_parameter_source(str(option.name), ParameterSource.COMMANDLINE)
    given = {name: value for pairs in values or () for name, value in pairs.items()} | parts
    entries, problems = normalised(str(option.name), given)
    if problems:
        raise click.BadParameter("; ".join(problems))
    return entries or None
