"""The command `accel runs`."""

import logging
from pathlib import Path

import pytest
from accel_runs.command import COMMAND
from accel_track.local.record import RunRecord
from accel_track.trackers.local import LocalTracker
from click.testing import CliRunner, Result


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(COMMAND, list(map(str, arguments)))


def recorded(folder: Path, loss: float, **config: object) -> Path:
    tracker = LocalTracker("project", folder)
    tracker.start()
    tracker.store_init_configuration(config)
    tracker.log({"loss": 9.0}, step=1)
    tracker.log({"loss": loss, "note": "x"}, step=5)
    tracker.log({"loss": 8.0}, step=3)
    path: Path = tracker.tracker.folder
    tracker.finish()
    return path


def test_runs_are_listed_shown_and_compared(tmp_path: Path) -> None:
    """S134."""
    first = recorded(tmp_path, 0.25, lr=0.1, model={"layers": 2, "width": 8})
    second = recorded(tmp_path, 0.5, lr=0.1, model={"layers": 4, "width": 8})
    listed = run("--dir", tmp_path).output.splitlines()
    assert [line.split()[:4] for line in listed[1:]] == [
        [f"project/{path.name}", "finished", "5", loss] for path, loss in sorted([(first, "0.25"), (second, "0.5")])
    ]
    shown = run("show", first.name, "--dir", tmp_path).output
    assert [line.split() for line in shown.splitlines() if line.startswith("loss")] == [["loss", "5", "0.25"]]
    assert "model/layers" in shown
    compared = [line.split() for line in run("compare", first, second).output.splitlines()]
    assert ["loss", "0.25", "0.5"] in compared
    assert ["model/layers", "2", "4"] in compared
    assert "model/width" not in [line[0] for line in compared if line]
    assert compared[-1] == ["(2", "settings", "are", "equal)"]


def test_the_list_shows_the_metric_that_most_runs_have(tmp_path: Path) -> None:
    for number, metrics in enumerate(({}, {"rate": 0.5}, {"rate": 0.25, "loss": 1 / 3}, {"loss": 2.0, "bleu": 30.0})):
        record = RunRecord(tmp_path / f"run{number}")
        record.add_facts(state="finished", started="today")
        record.log({**metrics, **({"loss": 4.5} if number == 1 else {})}, 7)
        record.close()
    listed = [line.split() for line in run("--dir", tmp_path).output.splitlines()]
    assert listed[0] == ["run", "state", "last", "step", "last", "loss", "started"]
    assert [line[3] for line in listed[1:]] == ["-", "4.5", "0.333333", "2"]


def test_comparing_a_run_with_itself_says_so(tmp_path: Path) -> None:
    path = recorded(tmp_path, 0.25)
    said = run("compare", "last", "last", "--dir", tmp_path).output
    assert said.startswith("last and last are the same run\n")
    assert "the same run" not in run("compare", path, recorded(tmp_path, 0.5)).output


def test_a_run_that_is_not_there_is_refused_with_what_there_is(tmp_path: Path) -> None:
    recorded(tmp_path, 1.0)
    recorded(tmp_path, 1.0)
    assert "no run is meant by 'x'" in str(run("show", "x", "--dir", tmp_path).exception)
    assert "several runs are meant by '20'" in str(run("show", "20", "--dir", tmp_path).exception)
    assert run("show", "last", "--dir", tmp_path).exit_code == 0
    assert f"no runs in {tmp_path / 'none'}: " in run("--dir", tmp_path / "none").output


def test_a_name_cannot_give_orders_to_the_terminal(tmp_path: Path) -> None:
    tracker = LocalTracker("project", tmp_path)
    tracker.start()
    tracker.log({"\x1b[2Jloss": 1.0})
    tracker.finish()
    assert "\x1b" not in run("show", "last", "--dir", tmp_path).output


def test_a_run_that_has_lost_its_writer_is_interrupted(tmp_path: Path) -> None:
    """S134."""
    record = RunRecord(tmp_path / "project" / "run")
    record.add_facts(state="running", process=1)
    assert "running" in run("--dir", tmp_path).output
    record.close()
    assert "interrupted" in run("--dir", tmp_path).output


def test_values_that_differ_are_shown_so_that_they_do(tmp_path: Path) -> None:
    """S134: late digits, and texts that begin alike."""
    start = "/a/long/path/to/what/was/trained/on/" * 3
    first = recorded(tmp_path, 0.12345678, path=f"{start}one", rate=1e-3, other="x" * 60)
    second = recorded(tmp_path, 0.12345679, path=f"{start}two", rate=1e-3 + 1e-12, other="y" * 60)
    compared = [line.split() for line in run("compare", first, second).output.splitlines()]
    assert ["loss", "0.12345678", "0.12345679"] in compared
    assert ["rate", "0.001", "0.001000000001"] in compared
    assert ["path", f"{start}one", f"{start}two"] in compared
    assert ["other", f"{'x' * 48}...", f"{'y' * 48}..."] in compared
    third = recorded(tmp_path, 1.0, path=f"{start}one", rate=1e-3, other=f"{'x' * 59}z")
    compared = [line.split() for line in run("compare", first, second, third).output.splitlines()]
    assert ["other", "x" * 60, "y" * 60, f"{'x' * 59}z"] in compared


@pytest.mark.parametrize("content", ["[1, 2]", "{"])
def test_a_file_of_others_is_left_out_in_a_line(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = recorded(tmp_path, 1.0)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "run.json").write_text(content)
    with caplog.at_level(logging.WARNING, "accel"):
        assert path.name in run("--dir", tmp_path).output
    assert "site/run.json is left out, as it tells of no run" in caplog.text
    assert "no run is meant by" in str(run("show", tmp_path / "site", "--dir", tmp_path).exception)
