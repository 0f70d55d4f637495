"""What a tracker is: the base class of all, and of those that users write."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def on_main_process(method: Method) -> Method:
    """The method of a tracker, called on the main process alone if the tracker's `main_process_only` is true."""

    @functools.wraps(method)
    def called(self: GeneralTracker, *args: Any, **kwargs: Any) -> Any:
        from accel_state import PartialState

        if self.main_process_only and not PartialState().is_main_process:
            return None
        return method(self, *args, **kwargs)

    return called  # type: ignore[return-value] # the same arguments


class GeneralTracker:
    """Records a run somewhere; a tracker of one's own is a subclass.

    A subclass has a `name`, says by `requires_logging_directory` if its constructor needs a folder, and has the
    property `tracker`, which is the object of its client. `main_process_only` says if other processes have none, and
    `in_thread` if `log` and the like are called by a thread beside the training.

    Raises: NotImplementedError that lists what the subclass lacks.
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
        """What to install before this tracker can be used; None if nothing is missing."""
        return None

    @property
    def tracker(self) -> Any:
        """The object of the client that records."""
        return None

    def start(self) -> None:
        """Begins a new run."""

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Records the configuration of the run."""

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Records values of a step."""

    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Records lists of images by their names."""

    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Records a table, from the rows of `data` or from a dataframe."""

    def finish(self) -> None:
        """Ends the run."""

    def mark(self, kind: str, details: Mapping[str, Any]) -> None:
        """Records an event of the run: a "checkpoint", a "restart" or a "skipped step"."""

    def state_dict(self) -> dict[str, Any]:
        """What `resume` needs to go on in the same run, as JSON has it; {} if this tracker cannot."""
        return {}

    def has_ended(self, state: Mapping[str, Any]) -> bool:
        """Whether the run of `state` was finished, so that `load_state` begins a new run."""
        return False

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on in the run of `state`, without what came after it was taken.

        It is called instead of `start`, or after it, before anything was logged; the new run is given up then.

        Raises: LookupError if that run cannot be gone on with; the tracker is as it was.
        """
        raise LookupError(f"the tracker {self.name} cannot go on in an old run")
