"""Choose classes of trackers by the names that `log_with` takes."""

import warnings

from accel_track import TRACKERS, GeneralTracker

#: the class for each name; an entry of a program comes before a tracker of that name
LOGGER_TYPE_TO_CLASS: dict[str, type[GeneralTracker]] = TRACKERS.added
LOGGER_TYPE_TO_CLASS |= {name: TRACKERS.load(name) for name in TRACKERS.names()}


def register_tracker_class(tracker_class: type[GeneralTracker]) -> None:
    """Let `log_with` take the name of a class of trackers.

    Args:
        tracker_class: The class, which is made with the name of the project, the folder of logs if it requires one, and
            its `init_kwargs`.

    Raises:
        ValueError: It is no such class, or lacks `name` or `requires_logging_directory`.
    """
    problem = ""
    if not (isinstance(tracker_class, type) and issubclass(tracker_class, GeneralTracker)):
        problem = "expected a subclass of accel.tracking.GeneralTracker"
    elif lacking := [name for name in ("name", "requires_logging_directory") if not hasattr(tracker_class, name)]:
        problem = f"it lacks the class attribute {', '.join(lacking)}"
    if problem:
        raise ValueError(f"register_tracker_class({tracker_class!r}): {problem}")
    if tracker_class.name in LOGGER_TYPE_TO_CLASS:
        words = f"register_tracker_class: {tracker_class.__name__} takes the place of the tracker {tracker_class.name}"
        warnings.warn(words, stacklevel=2)
    LOGGER_TYPE_TO_CLASS[tracker_class.name] = tracker_class
