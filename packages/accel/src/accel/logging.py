"""The loggers that know which process they are in."""

from __future__ import annotations

import functools
import logging
from collections.abc import MutableMapping
from typing import Any, cast, final

from accel_state import current, is_initialized
from accel_state.environ import LOG_LEVEL, process_environ


@final
class MultiProcessAdapter(logging.LoggerAdapter[logging.Logger]):
    """A logger whose messages appear once for the whole job.

    Each method takes `main_process_only=False`, to log on all processes, and `in_order=True`, to log on one after the
    other.

    Raises:
        RuntimeError: A message comes before there is an Accelerator or a PartialState.

    Collective:
        With `in_order` every process must log the message.
    """

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log a message, with the source line of the caller.

        Args:
            level: The level, as in the module logging.
            msg: The message, with places for `args`.
            *args: What goes into the places.
            **kwargs: `main_process_only`, `in_order`, and what logging takes; `stacklevel` counts this method too.
        """
        if not is_initialized():
            raise RuntimeError(
                "a logger of accel.logging was used before the processes know of each other; create an Accelerator() or"
                " a PartialState() first"
            )
        everywhere = not kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        kwargs.setdefault("stacklevel", 2)
        topology, transport = current().topology, current().transport
        for rank in range(topology.world_size) if in_order else [topology.rank if everywhere else 0]:
            if rank == topology.rank and self.isEnabledFor(level):
                text, rest = self.process(msg, kwargs)
                self.logger.log(level, text, *args, **rest)
            if in_order:
                transport.barrier()

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the message with the rank before it, if there are several, and the other arguments."""
        topology = current().topology
        return (f"[RANK {topology.rank}] {msg}" if topology.world_size > 1 else msg), kwargs

    @functools.lru_cache(None)  # noqa: B019 - a logger lives as long as its process
    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """Warn of each message once in a process.

        Args:
            *args: The message, and what goes into its places.
            **kwargs: As for `log`.
        """
        self.warning(*args, **{"stacklevel": 3, **kwargs})


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """Return a logger whose messages appear once for the whole job.

    Args:
        name: The name of the logger, such as `__name__`.
        log_level: Its level; None for that of the variable ACCEL_LOG_LEVEL, or of the module logging.
    """
    logger = logging.getLogger(name)
    level = log_level or process_environ().get(LOG_LEVEL)
    if level is not None:
        logger.setLevel(level.upper())
        logger.root.setLevel(level.upper())
    return MultiProcessAdapter(logger, cast("dict[str, object]", {}))
