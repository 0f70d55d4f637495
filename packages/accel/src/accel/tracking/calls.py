"""The calls of a script to its trackers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from accel_track import GeneralTracker

from accel.tracking.choice import LogWith
from accel.tracking.session import PerTracker, TrackingSession


class TrackerCalls:
    """What an Accelerator records of a run."""

    _tracking: TrackingSession

    @property
    def log_with(self) -> list[LogWith]:
        """The trackers that were asked for: names, and trackers of the script's own."""
        return self._tracking.chosen

    @property
    def trackers(self) -> list[GeneralTracker]:
        """The trackers that were started on this process."""
        return self._tracking.trackers

    def init_trackers(
        self, project_name: str, config: Mapping[str, Any] | None = None, init_kwargs: PerTracker | None = None
    ) -> None:
        """Starts the trackers, and records `config`; `init_kwargs` has arguments for single trackers, by name.

        Trackers of a checkpoint that was loaded go on in their runs, after `load_state` in runs that have not ended.

        Raises: OSError if a record cannot be written; what else a tracker raises.
        """
        self._tracking.start(project_name, config, init_kwargs)

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: PerTracker | None = None,
        *,
        tokens: Any = None,
    ) -> None:
        """Hands values to the trackers; `log_kwargs` has more arguments for single trackers, by name.

        Never waits for a device or a tracker. Tensors have the values of now, whatever later steps do to them. With
        `tokens`, those of all processes since the call before that named them, `tokens_per_second`, `step_time_s` and
        `data_wait_s` are recorded too, from the second such call on.

        Raises: TypeError for tensors that are divided over ranks, a step that is no whole number, or `log_kwargs`
        that have no dictionary for a tracker.
        """
        self._tracking.log(values, step, log_kwargs, tokens)

    def log_images(
        self, values: Mapping[str, Sequence[Any]], step: int | None = None, log_kwargs: PerTracker | None = None
    ) -> None:
        """Hands lists of images to the trackers.

        Shape: each image (height, width, channels), or an image of Pillow.
        """
        self._tracking.call("log_images", {"values": values, "step": step}, log_kwargs)

    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        log_kwargs: PerTracker | None = None,
    ) -> None:
        """Hands a table to the trackers, as the rows of `data` or as a dataframe."""
        table = {"table_name": table_name, "columns": columns, "data": data, "dataframe": dataframe, "step": step}
        self._tracking.call("log_table", table, log_kwargs)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """The tracker of that name, or on request the object of its client, when it has all that was logged so far.

        Where only the main process has trackers, other processes get a tracker that does nothing.

        Raises: ValueError for a name that is not there.
        """
        return self._tracking.find(name, unwrap=unwrap)

    @abstractmethod
    def wait_for_checkpoint(self) -> None:
        """Returns when the checkpoint that is being written in the background is on the disk.

        Collective: every process must call.
        """

    def end_training(self) -> None:
        """Returns when the newest checkpoint is on the disk, and the trackers have all that was logged, and are ended.

        Raises: CheckpointError, on every process, if a checkpoint could not be written.
        Collective: every process must call.
        """
        try:
            self.wait_for_checkpoint()
        finally:
            self._tracking.end()
