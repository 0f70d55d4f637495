"""Switch off, in both runs, dropout, the statistics of a batch and the user's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock, patch

from accel import CheckpointError
from accel.accelerator import Accelerator
from accel.checkpoint.checkpointer import Checkpointer
from accel.checkpoint.find import CheckpointFinder
from accel.checkpoint.save_job import SaveRequest, destination
from accel.tracking.session import TrackingSession
from torch import nn
from torch.nn import functional

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


@contextmanager
def trial() -> Iterator[None]:
    """Switch off dropout, the normalisation of a batch by its own statistics, saving and loading inside the block.

    Trackers record nothing, as on a process that is not the main process. Batch normalisation uses its
    running statistics. `load_state` raises CheckpointError, and `resume` finds nothing.
    """
    norm, attend = functional.batch_norm, functional.scaled_dot_product_attention

    def batch_norm(*arguments: Any, **options: Any) -> Any:
        call = signature(norm).bind(*arguments, **options)
        if call.arguments["running_mean"] is not None:
            call.arguments["training"] = False
        return norm(*call.args, **call.kwargs)

    changed: dict[str, Any] = dict.fromkeys(DROPOUTS, lambda input, *_, **__: input)
    changed["scaled_dot_product_attention"] = (
        lambda query, key, value, attn_mask=None, dropout_p=0.0, *rest, **options: attend(
            query, key, value, attn_mask, 0.0, *rest, **options
        )
    )
    # alone it would fall back to batch normalisation, and with others it would exchange statistics
    whole = nn.modules.batchnorm._BatchNorm.forward
    begin = TrackingSession.__init__

    def untracked(session: TrackingSession, *arguments: Any, **options: Any) -> None:
        begin(session, *arguments, **{**options, "main": False})

    nothing, end = Mock(return_value=None), Mock(side_effect=SystemExit(0))
    with (
        patch.multiple(functional, batch_norm=batch_norm, **changed),
        patch.object(nn.SyncBatchNorm, "forward", whole),
        patch.multiple(Accelerator, save_model=nothing, save=nothing),
        patch.multiple(Checkpointer, save=_save, load=_load, save_and_stop=end),
        # `resume` and automatic names begin as in an empty folder
        patch.object(CheckpointFinder, "_numbered", Mock(return_value=[])),
        patch("accel.checkpoint.save_job.next_number", Mock(return_value=0)),
        patch("accel.preparation.ConsumptionLog.write", nothing),
        patch.object(TrackingSession, "__init__", untracked),
    ):
        yield


def _save(checkpointer: Checkpointer, output_dir: str | Path | None = None, *_: object, **__: object) -> Path:
    """Return the folder in which the checkpoint would be."""
    if output_dir is None and not checkpointer.project.automatic_checkpoint_naming:
        raise ValueError("save_state needs the path of a folder, or automatic_checkpoint_naming=True")
    return destination([SaveRequest.of(output_dir, checkpointer.project, rank=0, writer=0)], 0)


def _load(checkpointer: Checkpointer, input_dir: str | Path | None = None, **_: object) -> NoReturn:
    raise CheckpointError(
        f"load_state({'' if input_dir is None else repr(str(input_dir))}): accel verify runs a script as its first run,"
        " and loads no checkpoint; leave the call out, or call accelerator.resume(), which finds none here"
    )
