"""Loggers that know which process they are in."""

from __future__ import annotations

import functools
import logging
from collections.abc import MutableMapping
from typing import Any, cast, final

from accel_state import current, is_initialized
from accel_state.environ import LOG_LEVEL, process_environ


@final
class MultiProcessAdapter(logging.LoggerAdapter[logging.Logger]):
    """Logs on the main process only, or, with `main_process_only=False`, on all; with `in_order` one after the other.

    Raises: RuntimeError for a message before there is an Accelerator or a PartialState.
    Collective: with `in_order` every process must log the message.
    """

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Logs `msg % args`, with the place of the caller."""
        if not is_initialized():
            raise RuntimeError(
                "a logger of accel.logging was used before the processes know of each other; create an Accelerator() or"
                " a PartialState() first"
            )
        everywhere = not kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        topology, transport = current().topology, current().transport
        if in_order:
            for rank in range(topology.world_size):
                if rank == topology.rank:
                    self._emit(level, msg, args, kwargs)
                transport.barrier()
        elif everywhere or topology.rank == 0:
            self._emit(level, msg, args, kwargs)

    def _emit(self, level: int, msg: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.isEnabledFor(level):
            kwargs["stacklevel"] += 1
            text, rest = self.process(msg, kwargs)
            self.logger.log(level, text, *args, **rest)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The message with the rank before it, where there are several."""
        topology = current().topology
        return (f"[RANK {topology.rank}] {msg}" if topology.world_size > 1 else msg), kwargs

    @functools.lru_cache(None)  # noqa: B019 - a logger lives as long as its process
    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """Warns of each message once a process."""
        self.warning(*args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """The logger of that name; its methods take `main_process_only` (True) and `in_order` (False).

    Its level is `log_level`, or that of ACCEL_LOG_LEVEL, or what logging says.
    """
    logger = logging.getLogger(name)
    level = log_level or process_environ().get(LOG_LEVEL)
    if level is not None:
        logger.setLevel(level.upper())
        logger.root.setLevel(level.upper())
    return MultiProcessAdapter(logger, cast("dict[str, object]", {}))
