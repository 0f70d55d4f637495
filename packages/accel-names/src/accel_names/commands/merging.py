"""Merge the weights of a sharded model, for programs that read options with argparse."""

from __future__ import annotations

import argparse
from typing import Any

from accel_names.checkpoint.fsdp_files import merge_fsdp_weights
from accel_names.commands.launch import command_of, parser_of


def merge_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return a parser of the folder with shards, the folder to write, and two switches."""
    about = "Writes the weights of a sharded checkpoint as one whole."
    parser = parser_of("merge-weights", about, merge_command, subparsers)
    parser.add_argument("checkpoint_directory")
    parser.add_argument("output_path")
    parser.add_argument("--unsafe_serialization", action="store_true")
    parser.add_argument("--remove_checkpoint_dir", action="store_true")
    return parser


def merge_command(args: argparse.Namespace) -> None:
    """Merge as `merge_fsdp_weights` does, by what `merge_command_parser` has read."""
    safe = not args.unsafe_serialization
    merge_fsdp_weights(args.checkpoint_directory, args.output_path, safe, args.remove_checkpoint_dir)


COMMAND = command_of("merge-weights", merge_command_parser, merge_command)
