"""Convert config files of Accelerate for FSDP1 to FSDP2."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from textwrap import indent
from typing import Any

from accel_launch.config.config_writer import write_config

from accel_names.commands.cluster_config import read_yaml
from accel_names.commands.launch import command_of, parser_of

logger = logging.getLogger("accel")

#: keys of which FSDP2 has no counterpart
REMOVED = (
    "fsdp_backward_prefetch",
    "fsdp_forward_prefetch",
    "fsdp_sync_module_states",
    "fsdp_use_orig_params",
)
#: strategies in the order of their numbers, and whether each frees the whole parameters after a forward
STRATEGIES = {
    "FULL_SHARD": True,
    "SHARD_GRAD_OP": False,
    "NO_SHARD": False,
    "HYBRID_SHARD": True,
    "HYBRID_SHARD_ZERO2": False,
}
_BY_NUMBER = dict(zip("12345", STRATEGIES, strict=True))
_COPIES = "say over how many ranks each copy is sharded by parallelism_config_dp_shard_size"
_CHANGED = {
    "NO_SHARD": "FSDP2 shards gradients in any case: leave FSDP out instead",
    "HYBRID_SHARD": _COPIES,
    "HYBRID_SHARD_ZERO2": _COPIES,
}
STRATEGY, RESHARD = "fsdp_sharding_strategy", "fsdp_reshard_after_forward"


def convert_config_to_fsdp2(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with its part for FSDP in FSDP2's words. A config without FSDP1 stays as it is.

    What has no counterpart is left out, with a warning.
    """
    before = config.get("fsdp_config") or {}
    if not before or before.get("fsdp_version", 1) == 2:
        logger.warning("the config is for FSDP2 already" if before else "the config has no part for FSDP")
        return config
    after = {key: value for key, value in before.items() if key not in (*REMOVED, STRATEGY)}
    if dropped := [key for key in REMOVED if key in before]:
        logger.warning(f"FSDP2 has no counterpart of {', '.join(dropped)}")
    strategy: Any = after.get(RESHARD, before.get(STRATEGY))
    strategy = _BY_NUMBER.get(str(strategy), strategy)
    if STRATEGY in before or strategy in STRATEGIES:
        after[RESHARD] = STRATEGIES.get(strategy, strategy)
    if change := _CHANGED.get(strategy):
        logger.warning(f"{STRATEGY} {strategy}: {change}")
    return {**config, "fsdp_config": {**after, "fsdp_version": 2}}


def to_fsdp2_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return a parser of a config file, and of where its conversion is written."""
    parser = parser_of("to-fsdp2", "Converts a config file for FSDP1 to FSDP2.", to_fsdp2_command, subparsers)
    parser.add_argument("--config_file", required=True, help="the file to convert")
    parser.add_argument("--overwrite", action="store_true", help="replace the file, or the output file if it is there")
    parser.add_argument("--output_file", help="the file to write")
    return parser


def to_fsdp2_command(args: argparse.Namespace) -> None:
    """Convert a config file, of which all but the part for FSDP stays as it is written.

    Args:
        args: What `to_fsdp2_command_parser` has read.

    Raises:
        FileNotFoundError: There is no config file.
        ValueError: Neither an output file nor `overwrite` is given.
        FileExistsError: The output file is there, and may not be replaced.
    """
    if not Path(args.config_file).exists():
        raise FileNotFoundError(f"there is no config file {args.config_file}")
    if not args.overwrite and args.output_file is None:
        raise ValueError("give --output_file, or --overwrite to replace the file")
    if not args.overwrite and Path(args.output_file).exists():
        raise FileExistsError(f"{args.output_file} is there already; give --overwrite to replace it")
    before, text = read_yaml(args.config_file), Path(args.config_file).read_text(encoding="utf-8")
    after = convert_config_to_fsdp2(before)
    if after is not before:
        text = _with_options(text, after["fsdp_config"])
    write_config(Path(args.output_file or args.config_file), text)


def _with_options(text: str, options: dict[str, Any]) -> str:
    import yaml

    node: Any = yaml.compose(text, yaml.SafeLoader)
    (part,) = [value for key, value in node.value if key.value == "fsdp_config"]
    start, end = part.start_mark.index, part.end_mark.index
    end = start + len(text[start:end].rstrip())  # a block ends where the next key begins
    new = json.dumps(options) if part.flow_style else indent(yaml.safe_dump(options), " " * part.start_mark.column)
    return text[:start] + new.strip() + text[end:]


COMMAND = command_of("to-fsdp2", to_fsdp2_command_parser, to_fsdp2_command)
