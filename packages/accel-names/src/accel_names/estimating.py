"""`accel estimate-memory` for programs that read its options with argparse, or want its numbers."""

from __future__ import annotations

import argparse
from typing import Any

from accel_big.command import COMMAND
from accel_big.estimate_options import DTYPES
from accel_big.memory_estimate import estimate, measure_model
from accel_big.model_source import load, locate
from accel_state.errors import CannotRun
from torch import nn

_DEFAULT = ("float32", "float16", "int8", "int4")


def estimate_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """A parser of a model and the dtypes; the model is named as for `accel estimate-memory`."""
    about = "Prints what a model takes in several dtypes; nothing is downloaded."
    parser: argparse.ArgumentParser
    if subparsers is None:
        parser = argparse.ArgumentParser("accel estimate-memory", description=about)
    else:
        parser = subparsers.add_parser("estimate-memory", description=about)
    parser.add_argument("model_name")
    parser.add_argument("--dtypes", nargs="+", default=list(_DEFAULT), choices=list(DTYPES))
    if subparsers is not None:
        parser.set_defaults(func=estimate_command)
    return parser


def estimate_command(args: argparse.Namespace) -> None:
    """Prints the estimate.

    Raises: CannotRun with every reason why there is none.
    """
    words = [args.model_name, *(word for dtype in args.dtypes for word in ("--dtypes", dtype))]
    COMMAND.main(words, prog_name="accel estimate-memory", standalone_mode=False)


def create_empty_model(
    model_name: str, library_name: str | None = None, trust_remote_code: bool = False, access_token: str | None = None
) -> nn.Module:
    """The model without memory for its weights; nothing is downloaded, so the name is a folder or MODULE:NAME.

    Raises: CannotRun if there is none, or for code that would come from a folder.
    """
    if trust_remote_code:
        raise CannotRun("create_empty_model", ["trust_remote_code: no code out of a folder is run"])
    found = load(locate(model_name))
    if found.model is None:
        raise CannotRun("create_empty_model", [f"{model_name} has weights and no code that makes a model of them"])
    return found.model


def gather_data(args: argparse.Namespace) -> list[list[Any]]:
    """A row for each dtype: its name, the bytes of the largest layer, of the model, and of what training needs.

    Units: bytes; what training needs is those of the model, gradients and the state of AdamW; None if the dtype is not
    trained in.
    """
    size = measure_model(create_empty_model(args.model_name), args.model_name)
    rows: list[list[Any]] = []
    for dtype in args.dtypes:
        of = estimate(size, dtype, "adamw")
        rows.append([dtype, of.largest_layer_bytes, of.total_bytes, of.training_bytes])
    return rows
