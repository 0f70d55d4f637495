"""Convert config files of Accelerate for FSDP1 to FSDP2."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from accel_names.commands.cluster_config import read_yaml, write_yaml
from accel_names.commands.launch import command_of, parser_of

logger = logging.getLogger("accel")

#: keys of which FSDP2 has no counterpart
REMOVED = (
    "fsdp_backward_prefetch",
    "fsdp_forward_prefetch",
    "fsdp_sync_module_states",
    "fsdp_use_orig_params",
)
#: strategies, and whether each frees the whole parameters after a forward
STRATEGIES = {
    "FULL_SHARD": True,
    "HYBRID_SHARD": True,
    "SHARD_GRAD_OP": False,
    "HYBRID_SHARD_ZERO2": False,
    "NO_SHARD": False,
}
_CHANGED = {
    "NO_SHARD": "FSDP2 shards gradients in any case: leave FSDP out instead",
    "HYBRID_SHARD": "say over how many ranks each copy is sharded by parallelism_config_dp_shard_size",
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
    if STRATEGY in before or strategy in STRATEGIES:
        after[RESHARD] = STRATEGIES.get(strategy, strategy)
    if change := _CHANGED.get(str(strategy).removesuffix("_ZERO2")):
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
    """Convert a config file.

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
    config = convert_config_to_fsdp2(read_yaml(args.config_file))
    write_yaml(config, args.output_file or args.config_file)


COMMAND = command_of("to-fsdp2", to_fsdp2_command_parser, to_fsdp2_command)
