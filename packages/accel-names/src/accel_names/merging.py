"""`merge_fsdp_weights` for programs that read its options with argparse."""

from __future__ import annotations

import argparse
from typing import Any

from accel_names.checkpoint.fsdp_files import merge_fsdp_weights


def merge_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """A parser of the folder with shards, the folder to write, and two switches."""
    about = "Writes the weights of a sharded checkpoint as one whole."
    parser: argparse.ArgumentParser
    if subparsers is None:
        parser = argparse.ArgumentParser("merge-weights", description=about)
    else:
        parser = subparsers.add_parser("merge-weights", description=about)
    parser.add_argument("checkpoint_directory")
    parser.add_argument("output_path")
    parser.add_argument("--unsafe_serialization", action="store_true")
    parser.add_argument("--remove_checkpoint_dir", action="store_true")
    if subparsers is not None:
        parser.set_defaults(func=merge_command)
    return parser


def merge_command(args: argparse.Namespace) -> None:
    """Merges as `merge_fsdp_weights` does, by what the parser has read."""
    safe = not args.unsafe_serialization
    merge_fsdp_weights(args.checkpoint_directory, args.output_path, safe, args.remove_checkpoint_dir)
