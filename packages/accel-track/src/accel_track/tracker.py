"""The base class of all trackers, also of those that users write."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def on_main_process(method: Method) -> Method:
    """Let only the main process call a method of a tracker, if the tracker's `main_process_only` is true.

    Args:
        method: The method; this is a decorator.
    """

    @functools.wraps(method)
    def called(self: GeneralTracker, *args: Any, **kwargs: Any) -> Any:
        from accel_state import PartialState

        if self.main_process_only and not PartialState().is_main_process:
            return None
        return method(self, *args, **kwargs)

    return called  # type: ignore[return-value] # the same arguments


class GeneralTracker:
    """The base class of trackers, which record a run somewhere.

    A subclass needs the class attributes `name` and `requires_logging_directory`, which is true if its constructor
    takes a folder, and the property `tracker`. If `main_process_only` is false, every process has the tracker. If
    `in_thread` is false, the training thread calls `log` and the other methods, and not a thread beside it.

    Args:
        _blank: Make a tracker that does nothing.

    Raises:
        NotImplementedError: The subclass lacks an attribute; the message lists all that it lacks.
    """

    name: str
    requires_logging_directory: bool
    main_process_only: ClassVar[bool] = True
    in_thread: ClassVar[bool] = True
    #: the folder for trackers that need a folder, if the script names none; None if the script must
    default_logging_directory: ClassVar[str | None] = None

    def __init__(self, _blank: bool = False) -> None:
        if not _blank:
            lacking = [name for name in ("name", "requires_logging_directory") if name not in dir(self)]
            lacking += ["tracker"] if type(self).tracker is GeneralTracker.tracker else []
            if lacking:
                raise NotImplementedError(
                    f"the tracker {type(self).__name__} lacks {', '.join(lacking)}: a tracker has the class attributes"
                    " name (a text) and requires_logging_directory (True or False), and the property tracker"
                )

    @classmethod
    def missing(cls) -> str | None:
        """Return what to install before this tracker can be used, or None if nothing is missing."""
        return None

    @property
    def tracker(self) -> Any:
        """The client's object of the run."""
        return None

    def start(self) -> None:
        """Begin a new run."""

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record the configuration of the run."""

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record values of a step.

        Args:
            values: Values by name, which may be nested. Tensors of one element have become numbers, and other tensors
                are on the CPU.
            step: Number of the step, or None if the script gave none.
            kwargs: The tracker's entry in `log_kwargs`.
        """

    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record images of a step.

        Args:
            values: Lists of images by name.
            step: Number of the step, or None if the script gave none.
            kwargs: The tracker's entry in `log_kwargs`.
        """

    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Record a table.

        Args:
            table_name: Name of the table.
            columns: Names of the columns.
            data: The rows.
            dataframe: A dataframe in place of columns and rows.
            step: Number of the step, or None if the script gave none.
            kwargs: The tracker's entry in `log_kwargs`.
        """

    def finish(self) -> None:
        """End the run."""

    def mark(self, kind: str, details: Mapping[str, Any]) -> None:
        """Record an event of the run.

        Args:
            kind: The event, such as "checkpoint", "loaded checkpoint" or "skipped step".
            details: More about it, such as the path of the checkpoint.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what `resume` needs, as JSON has it, or {} if this tracker cannot resume a run."""
        return {}

    def has_ended(self, state: Mapping[str, Any]) -> bool:
        """Return whether the run of a state was finished, so that `load_state` begins a new run."""
        return False

    def resume(self, state: Mapping[str, Any]) -> None:
        """Resume the run of a state, without what was logged after the state was taken.

        It is called instead of `start`. It is called after `start` if nothing was logged yet; then the new run is
        given up.

        Args:
            state: What `state_dict` of that run returned.

        Raises:
            LookupError: The run cannot be resumed. The tracker is as it was.
        """
        raise LookupError(f"the tracker {self.name} cannot go on in an old run")
