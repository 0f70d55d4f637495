"""Estimate the memory of a model, for programs that read options with argparse, or want the numbers."""

from __future__ import annotations

import argparse
from typing import Any

from accel_big.command import COMMAND
from accel_big.estimate_options import DTYPES
from accel_big.memory_estimate import estimate, measure_model
from accel_big.model_source import load, locate
from accel_state.errors import CannotRun
from torch import nn

from accel_names.commands.launch import parser_of

_DEFAULT = ("float32", "float16", "int8", "int4")


class NoSuchModel(CannotRun, OSError):
    """The error of a name that is no model here."""


def estimate_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return a parser of the dtypes and of a model, which is named as for `accel estimate-memory`."""
    about = "Prints what a model takes in several dtypes; nothing is downloaded."
    parser = parser_of("estimate-memory", about, estimate_command, subparsers)
    parser.add_argument("model_name")
    parser.add_argument("--dtypes", nargs="+", default=list(_DEFAULT), choices=list(DTYPES))
    return parser


def estimate_command(args: argparse.Namespace) -> None:
    """Print the estimate.

    Args:
        args: What `estimate_command_parser` has read.

    Raises:
        NoSuchModel: With every reason why there is none. Programs expect an `OSError`.
    """
    words = [args.model_name, *(word for dtype in args.dtypes for word in ("--dtypes", dtype))]
    try:
        COMMAND.main(words, prog_name="accel estimate-memory", standalone_mode=False)
    except CannotRun as error:
        raise NoSuchModel(error.what, error.reasons) from None


def create_empty_model(
    model_name: str, library_name: str | None = None, trust_remote_code: bool = False, access_token: str | None = None
) -> nn.Module:
    """Return a model without memory for its weights.

    Args:
        model_name: A folder with a config, or MODULE:NAME. Nothing is downloaded.
        library_name: Not used: the folder or the module says it.
        trust_remote_code: True is refused.
        access_token: Not used.

    Raises:
        CannotRun: If there is no such model, or for code that would come from a folder.
    """
    if trust_remote_code:
        raise CannotRun("create_empty_model", ["trust_remote_code: no code out of a folder is run"])
    found = load(locate(model_name))
    if found.model is None:
        raise CannotRun("create_empty_model", [f"{model_name} has weights and no code that makes a model of them"])
    return found.model


def gather_data(args: argparse.Namespace) -> list[list[Any]]:
    """Return a row for each dtype: its name, the bytes of the largest layer, of the model, and of training.

    Args:
        args: What `estimate_command_parser` has read.

    Units:
        Training takes the bytes of the model, of gradients and of the state of AdamW; None if no model is trained in
        the dtype.
    """
    size = measure_model(create_empty_model(args.model_name), args.model_name)
    rows: list[list[Any]] = []
    for dtype in args.dtypes:
        of = estimate(size, dtype, "adamw")
        rows.append([dtype, of.largest_layer_bytes, of.total_bytes, of.training_bytes])
    return rows


def add_timm_hub_prefix(model_name: str) -> str:
    """Return a name for timm, which is told of a model of the hub by `hf-hub:` before it."""
    return f"hf-hub:{model_name}" if "/" in model_name and ":" not in model_name else model_name
