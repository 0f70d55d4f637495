"""All rows, in the order of the table."""

from benchmarks.row import Row
from benchmarks.rows import (
    big_models,
    checkpoint,
    costly,
    exchange,
    exchange_apart,
    exchange_cost,
    files,
    first_batch,
    in_memory,
    launch,
    memory,
    rehearsal,
    seek,
    sharded_checkpoint,
    share,
    steady,
    step,
    tracking,
)

ROWS: tuple[Row, ...] = (
    *steady.ROWS,
    *costly.ROWS,
    *first_batch.ROWS,
    *files.ROWS,
    *share.ROWS,
    *seek.ROWS,
    *memory.ROWS,
    *step.ROWS,
    *rehearsal.ROWS,
    *exchange.ROWS,
    *exchange_apart.ROWS,
    *exchange_cost.ROWS,
    *checkpoint.ROWS,
    *sharded_checkpoint.ROWS,
    *in_memory.ROWS,
    *big_models.ROWS,
    *launch.ROWS,
    *tracking.ROWS,
)

__all__ = ["ROWS"]
