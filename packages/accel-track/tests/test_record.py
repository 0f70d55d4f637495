"""The record of a run in its folder."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accel_track.local.lines import entries
from accel_track.local.record import RunRecord, safe_name
from accel_track.trackers import TRACKERS
from accel_track.trackers.local import LocalTracker
from PIL import Image


def steps(folder: Path) -> list[int]:
    return [entry["step"] for entry in entries(folder / "metrics.jsonl")]


def test_a_run_leaves_a_record(tmp_path: Path) -> None:
    """S132: with nothing installed."""
    tracker = LocalTracker("my/project", tmp_path)
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1, "nested": {"decay": math.nan}})
    tracker.log({"loss": {"train": 0.5}})
    tracker.log({"loss": {"train": math.inf}}, step=7)
    tracker.log({"loss": {"train": 0.1}})
    tracker.mark("checkpoint", {"path": "somewhere"})
    folder = tracker.tracker.folder
    tracker.finish()
    assert folder.parent == tmp_path / "my_project"
    lines = list(entries(folder / "metrics.jsonl"))
    assert [(line["n"], line["step"], line["metrics"]) for line in lines] == [
        (0, 0, {"loss/train": 0.5}),
        (1, 7, {"loss/train": "Infinity"}),
        (2, 8, {"loss/train": 0.1}),
    ]
    assert json.loads((folder / "config.json").read_text()) == {"lr": 0.1, "nested": {"decay": "NaN"}}
    metadata = json.loads((folder / "run.json").read_text())
    assert metadata["state"] == "finished"
    assert metadata["command"][0] == sys.orig_argv[0]
    assert metadata["versions"]["python"]
    assert len(metadata["git"]["commit"]) == 40
    assert [(event["step"], event["path"]) for event in metadata["checkpoints"]] == [(8, "somewhere")]


def test_tables_and_images_are_recorded(tmp_path: Path) -> None:
    """S139."""
    record = RunRecord(tmp_path / "run")
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    record.log_images({"in/put": [image, image[:, :, 0] / 255]}, step=1)
    with pytest.raises(ValueError, match=r"found \(2, 2, 7\)"):
        record.log_images({"x": [np.zeros((2, 2, 7))]}, step=1)
    record.log_table("scores", ["name", "score"], [["a", np.float32(math.nan)]], step=2)
    record.close()
    pictures, table = entries(tmp_path / "run" / "media.jsonl")
    first, second = pictures["images"]["in/put"]
    assert pixels(tmp_path / "run" / "images" / first) == ((6, 4), image.tobytes())
    assert pixels(tmp_path / "run" / "images" / second) == ((6, 4), image[:, :, 0].tobytes())
    assert (table["table"], table["columns"], table["rows"]) == ("scores", ["name", "score"], [["a", "NaN"]])


def pixels(path: Path) -> tuple[tuple[int, int], bytes]:
    with Image.open(path) as image:
        return image.size, image.tobytes()


def test_images_of_names_that_look_alike_are_files_of_their_own(tmp_path: Path) -> None:
    """S139."""
    record = RunRecord(tmp_path)
    names = ["a/b", "a b", "n" * 80 + "1", "n" * 80 + "2"]
    record.log_images({name: [np.full((2, 2), shade, np.uint8)] for shade, name in enumerate(names)}, step=1)
    record.close()
    (line,) = entries(tmp_path / "media.jsonl")
    found = [pixels(tmp_path / "images" / file) for name in names for file in line["images"][name]]
    assert found == [((2, 2), bytes([shade] * 4)) for shade in range(4)]


def test_a_table_keeps_the_types_of_its_columns(tmp_path: Path) -> None:
    """S139: a whole number beside a column of floats is none."""
    tracker = LocalTracker("project", tmp_path)
    tracker.start()
    pandas, large = pytest.importorskip("pandas"), 2**53 + 1
    tracker.log_table("table", dataframe=pandas.DataFrame({"id": [large], "score": [0.5]}))
    (line,) = entries(tracker.tracker.folder / "media.jsonl")
    tracker.finish()
    assert (line["columns"], line["rows"]) == (["id", "score"], [[large, 0.5]])


def test_a_name_that_comes_again_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    tracker = LocalTracker("project", tmp_path)
    tracker.start()
    with pytest.raises(TypeError, match="another a/b was left out"):
        tracker.log({"a/b": 1, "a": {"b": 2, "c": 3}})
    (line,) = entries(tracker.tracker.folder / "metrics.jsonl")
    tracker.finish()
    assert line["metrics"] == {"a/b": 1, "a/c": 3}


def test_a_rewound_record_has_each_call_once(tmp_path: Path) -> None:
    """S135, S139: metrics, tables, images and events of after the checkpoint are given up."""
    record = RunRecord(tmp_path)
    for step in range(3):
        record.log({"loss": step}, step)
    record.add_event("checkpoint", 2, {})
    position = record.calls, 3
    record.log({"loss": 3}, 3)
    record.log_table("t", ["a"], [[3]], 3)
    record.log_images({"i": [np.zeros((2, 2))]}, 3)
    record.add_event("skipped step", 3, {})
    record.close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"n":6,"step":4,"met')
    resumed = RunRecord(tmp_path)
    resumed.rewind(*position)
    for step in range(3, 6):
        resumed.log({"loss": step * 10}, step)
    resumed.close()
    assert [(entry["step"], entry["metrics"]["loss"]) for entry in entries(tmp_path / "metrics.jsonl")] == [
        *((0, 0), (1, 1), (2, 2), (3, 30), (4, 40), (5, 50)),
    ]
    assert [entry["n"] for entry in entries(tmp_path / "metrics.jsonl")] == list(range(6))
    assert list(entries(tmp_path / "media.jsonl")) == []
    assert list((tmp_path / "images").iterdir()) == []
    assert [entry["step"] for entry in entries(tmp_path / "metrics.jsonl.given-up-1")] == [3]
    (image,) = (
        file for entry in entries(tmp_path / "media.jsonl.given-up-1") for file in entry.get("images", {}).get("i", [])
    )
    assert (tmp_path / "images.given-up-1" / image).is_file()
    assert len(resumed.metadata["checkpoints"]) == 1
    assert resumed.metadata["skipped_steps"] == []


WRITER = """
import sys, itertools
from pathlib import Path
from accel_track.local.record import RunRecord
record = RunRecord(Path(sys.argv[1]))
for step in itertools.count():
    record.log({"loss": step, "text": "x" * 5000}, step)
    print(step, flush=True)
"""


def writer(folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_second_process_is_refused_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    """S132: and what a kill leaves are whole lines, each step once."""
    process = writer(tmp_path)
    try:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        with pytest.raises(OSError, match="another process writes the record"):
            RunRecord(tmp_path)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    found = steps(tmp_path)
    assert found == list(range(len(found)))
    assert len(found) >= 50
    RunRecord(tmp_path).close()


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        LocalTracker("project", tmp_path / "file").start()


@pytest.mark.parametrize(
    ("name", "wanted"), [("../../x", "_.._x"), ("a b/c", "a_b_c"), ("..", "_"), ("p" * 300, "p" * 80)]
)
def test_a_name_stays_in_its_folder(name: str, wanted: str, tmp_path: Path) -> None:
    assert safe_name(name) == wanted
    assert LocalTracker(name, tmp_path)._folder.parent == tmp_path


def test_ten_megabytes_of_configuration_are_kept(tmp_path: Path) -> None:
    record, config = RunRecord(tmp_path), {f"name{number}": "x" * 1000 for number in range(10_000)}
    record.configure(config)
    record.close()
    assert json.loads((tmp_path / "config.json").read_text()) == config


def test_the_tracker_is_found_by_its_name() -> None:
    kind: Any = TRACKERS.load("local")
    assert kind is LocalTracker
    assert kind.missing() is None
