"""Trackers that a script names by the class that it has registered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accel import Accelerator
from accel.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, TensorBoardTracker, register_tracker_class
from accel_state import release


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = dict(LOGGER_TYPE_TO_CLASS)
    yield
    release()
    LOGGER_TYPE_TO_CLASS.clear()
    LOGGER_TYPE_TO_CLASS.update(before)


class Named(GeneralTracker):
    name = "named"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str, **settings: Any) -> None:
        super().__init__()
        self.made_with = run_name, logging_dir, settings

    @property
    def tracker(self) -> Any:
        return self


def test_a_registered_class_is_chosen_by_its_name(tmp_path: Path) -> None:
    register_tracker_class(Named)
    with pytest.raises(ValueError, match="Logging with `named` requires a `logging_dir`"):
        Accelerator(cpu=True, log_with="named")
    accelerator = Accelerator(cpu=True, log_with="named", project_dir=tmp_path)
    accelerator.init_trackers("project", init_kwargs={"named": {"size": 3}})
    tracker: Any = accelerator.get_tracker("named")
    assert tracker.made_with == ("project", tmp_path, {"size": 3})
    accelerator.end_training()


def test_what_is_no_class_of_trackers_is_refused() -> None:
    class Nameless(GeneralTracker):
        requires_logging_directory = False

    with pytest.raises(ValueError, match="expected a subclass of"):
        register_tracker_class(dict)
    with pytest.raises(ValueError, match="it lacks the class attribute name"):
        register_tracker_class(Nameless)


def test_a_class_that_takes_a_place_is_told_of() -> None:
    assert LOGGER_TYPE_TO_CLASS["tensorboard"] is TensorBoardTracker
    register_tracker_class(Named)
    with pytest.warns(UserWarning, match="Named takes the place of the tracker named"):
        register_tracker_class(Named)


def test_a_tracker_is_made_by_the_words_of_accelerate(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(run_name="project", logging_dir=tmp_path)
    assert (tracker._project, tracker._folder) == ("project", tmp_path)
