"""Whatever has become of a file of a record: training goes on, and `accel runs` shows the other runs."""

import logging
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accel_runs.command import COMMAND
from accel_track.local.lines import entries
from accel_track.trackers.local import LocalTracker
from click.testing import CliRunner, Result
from damages import CONTENT, DAMAGES, FORBIDDEN, damage, forbidden

FILES = ("metrics.jsonl", "media.jsonl", "run.json", "config.json")
#: what is no damage: a document may be any JSON, and a configuration may be missing
HARMLESS = {
    *(("config.json", how) for how in ("texts for numbers", "NaN for numbers", "a huge number", "missing")),
    *(("config.json", how) for how in ("a link to nothing", "a list for an object", "null for an object")),
    *(("config.json", how) for how in ("values of other types",)),
}


@pytest.fixture(autouse=True)
def _facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask git for each of 200 runs would take seconds."""
    facts = {"command": ["train.py"], "world": 1, "versions": {}, "git": {"commit": "1234", "changed": False}}
    monkeypatch.setattr("accel_track.trackers.local.run_facts", lambda: facts)


def begun(parent: Path, name: str = "project") -> tuple[Path, dict[str, Any]]:
    """The folder of a run that was killed after five steps, and its state in the checkpoint after three."""
    tracker = LocalTracker(name, parent)
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1, "layers": [2, 3], "seed": 1})
    for step in range(5):
        tracker.log({"loss": float(step)}, step=step)
        if step in (1, 3):
            tracker.log_table("table", ["a"], [[step]], step=step)
            tracker.log_images({"image": [np.zeros((2, 2))]}, step=step)
        if step == 2:
            state = tracker.state_dict()
            tracker.mark("checkpoint", {"path": "somewhere"})
    tracker.tracker.close()
    return tracker.tracker.folder, state


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_training_goes_on_with_each_step_once(
    name: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, state = begun(tmp_path)
    damage(folder / name, how)
    with caplog.at_level(logging.WARNING, "accel"):
        with forbidden(folder / name) if how == FORBIDDEN else nullcontext():
            tracker = LocalTracker("project", tmp_path)
            assert not tracker.has_ended(state)
            tracker.resume(state)
        tracker.store_init_configuration({"lr": 0.2})
        for step in range(3, 6):
            tracker.log({"loss": float(step)}, step=step)
        tracker.log_table("table", ["a"], [[3]], step=3)
        tracker.finish()
    told = [record.getMessage() for record in caplog.records if str(folder) in record.getMessage()]
    if name != "config.json":
        assert told
        assert any(str(folder / name) in line or "lacks" in line for line in told)
    assert len(told) == len(set(told))
    steps = [entry["step"] for entry in entries(folder / "metrics.jsonl")]
    assert max(Counter(steps).values()) == 1
    assert steps == sorted(steps)
    assert steps[-3:] == [3, 4, 5]
    assert name == "metrics.jsonl" or steps == list(range(6))
    assert [entry["step"] for entry in entries(folder / "media.jsonl") if entry.get("table")][-1] == 3
    caplog.clear()
    again = LocalTracker("project", tmp_path)
    again.resume(state)
    again.finish()
    assert not [record for record in caplog.records if "damaged" in record.getMessage()], "a file is told of once"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(COMMAND, list(map(str, arguments)), catch_exceptions=False)


@pytest.mark.parametrize("name", FILES)
def test_every_healthy_run_is_shown_and_the_damaged_file_is_named(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    healthy, _ = begun(tmp_path, "healthy")
    damaged = {how: begun(tmp_path, f"damaged-{number}")[0] for number, how in enumerate(DAMAGES)}
    for how, folder in damaged.items():
        damage(folder / name, how)
    with caplog.at_level(logging.WARNING, "accel"), forbidden(damaged[FORBIDDEN] / name):
        listed = run("--dir", tmp_path)
        for how, folder in damaged.items():
            assert folder.name in listed.output, how
            assert run("show", folder).exit_code == 0
        compared = run("compare", healthy, *damaged.values())
        drawn = run("plot", healthy, *damaged.values(), "-o", tmp_path / "page.html")
    assert healthy.name in listed.output
    assert healthy.name in compared.output
    assert drawn.exit_code == 0
    assert healthy.name in (tmp_path / "page.html").read_text()
    told = [record.getMessage() for record in caplog.records]
    silent = {how for how, folder in damaged.items() if not any(str(folder / name) in line for line in told)}
    assert silent == {how for file, how in HARMLESS if file == name}
    assert not [line for line in told if str(healthy) in line]
    assert len(told) == len(set(told))


def test_a_number_that_no_float_reaches_is_infinite(tmp_path: Path) -> None:
    tracker = LocalTracker("project", tmp_path)
    tracker.start()
    for step, value in enumerate((1, 10**400, -(10**5000))):
        tracker.log({"x": value, "\ud800": 1.0}, step=step)
    tracker.finish()
    values = [entry["metrics"]["x"] for entry in entries(tracker.tracker.folder / "metrics.jsonl")]
    assert values == [1, "Infinity", "-Infinity"]
    assert run("plot", "last", "-o", tmp_path / "page.html", "--dir", tmp_path).exit_code == 0
    assert "-Infinity" in run("show", "last", "--dir", tmp_path).output


def test_a_record_of_before_may_have_numbers_that_no_float_reaches(tmp_path: Path) -> None:
    folder, _ = begun(tmp_path)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"loss":1.0', b'"loss":1' + b"0" * 400))
    assert run("plot", "last", "-o", tmp_path / "page.html", "--dir", tmp_path).exit_code == 0


def test_there_are_sixteen_kinds_of_damage_at_least() -> None:
    assert len(DAMAGES) >= 16
    assert all(change(content := b'{"n":0,"step":1,"metrics":{}}\n') != content for change in CONTENT.values())
