"""What trackers do before they have a client."""

from pathlib import Path
from typing import Any

import pytest
from accel_track.client_tracker import ClientTracker
from accel_track.trackers import TRACKERS


class Absent(ClientTracker):
    """The tracker of a package that nobody has."""

    name = "a_package_that_nobody_has"

    def __init__(self) -> None:
        super().__init__("project")
        self.written: list[tuple[int, dict[str, Any]]] = []

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        self.written.append((step, values))


def test_a_folder_of_that_name_is_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients leave folders of their name in the working directory, which Python takes for packages."""
    monkeypatch.syspath_prepend(tmp_path)
    wanted = "pip install a_package_that_nobody_has"
    assert Absent.missing() == wanted
    (tmp_path / Absent.name).mkdir()
    assert Absent.missing() == wanted


def test_numbers_go_to_the_client_under_their_paths_and_others_are_told() -> None:
    tracker = Absent()
    with pytest.raises(TypeError, match=r"note \(str\), none \(None\) was left out: .* takes int, float"):
        tracker.log({"loss": {"train": 1.5}, "note": "good", "none": None}, step=3)
    tracker.log({"loss": 2})
    assert tracker.written == [(3, {"loss/train": 1.5}), (4, {"loss": 2})]


def test_what_a_client_cannot_take_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="takes no images"):
        Absent().log_images({"image": [[[0]]]})
    with pytest.raises(NotImplementedError, match="takes no tables"):
        Absent().log_table("table", ["a"], [[1]])


@pytest.mark.parametrize("name", TRACKERS.names())
def test_every_tracker_has_the_name_of_its_file_and_imports_no_client(name: str) -> None:
    kind = TRACKERS.load(name)
    assert kind.name == name
    assert kind.missing() is None or name in str(kind.missing())


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        *(("tensorboard", "writer"), ("comet_ml", "writer"), ("aim", "writer"), ("wandb", "run"), ("trackio", "run")),
        *(("swanlab", "run"), ("clearml", "task"), ("dvclive", "live"), ("mlflow", "active_run")),
    ],
)
def test_the_clients_object_has_the_name_that_programs_ask_for(name: str, known_as: str, tmp_path: Path) -> None:
    """Scripts of diffusers write `tracker.writer.add_images(...)` for TensorBoard."""

    class Client:
        def get_run(self, at: str) -> str:
            return f"run {at}"

    kind: Any = TRACKERS.load(name)
    tracker = kind("project", tmp_path)
    tracker._run = Client()
    assert getattr(tracker, known_as) == tracker.tracker
