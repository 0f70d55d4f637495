"""Whatever has become of a file of a record: training goes on, and `accel runs` shows the other runs."""

import io
import logging
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from accel_runs.command import COMMAND
from accel_track.local.lines import entries
from accel_track.trackers.local import LocalTracker
from click.testing import CliRunner, Result

#: what becomes of the content of a file
CONTENT: dict[str, Callable[[bytes], bytes]] = {
    "NULs in a line": lambda content: content[:10] + b"\0" * 40 + content[50:],
    "NULs at the end": lambda content: content + b"\0" * 4096,
    "NULs alone": lambda content: b"\0" * len(content),
    "latin-1": lambda content: content.replace(b'"', b'"\xe9', 1),
    "truncated": lambda content: content[:-9],
    "a third of it": lambda content: content[: len(content) // 3],
    "a list for an object": lambda content: b"[1, 2]\n" + content.partition(b"\n")[2] * (content[:2] != b"{\n"),
    "null for an object": lambda content: b"null\n" + content.partition(b"\n")[2] * (content[:2] != b"{\n"),
    "texts for numbers": lambda content: re.sub(rb'"(n|step)": ?\d+', rb'"\1":"one"', content, count=2),
    "NaN for numbers": lambda content: re.sub(rb'"(n|step)": ?\d+', rb'"\1":NaN', content, count=2),
    "a huge number": lambda content: re.sub(rb'"(n|step)": ?\d+', rb'"\1":1' + b"0" * 400, content, count=2),
    "a number of too many digits": lambda content: re.sub(
        rb'("(n|seed|world)": ?)\d+', rb"\g<1>" + b"1" * 5000, content, count=1
    ),
    "values of other types": lambda content: re.sub(rb'("metrics"|"table"|"git"): ?', rb"\1:[[]],", content, count=1),
    "deep nesting": lambda content: b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n" + content,
    "a huge line": lambda content: b"x" * 2**22 + b"\n" + content,
    "twice the same": lambda content: content + content,
    "empty": lambda content: b"",
}


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone")


#: what becomes of the file itself
FILE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "a folder": become_folder,
    "a link to nothing": become_dangling_link,
}
FORBIDDEN = "no permission"
DAMAGES = (*CONTENT, *FILE, FORBIDDEN)


def damage(path: Path, how: str) -> None:
    """Damages a file; without permission it stays as it is (`forbidden`)."""
    if how in CONTENT:
        path.write_bytes(CONTENT[how](path.read_bytes()))
    elif how in FILE:
        FILE[how](path)


def forbidden(path: Path) -> Any:
    """In this block a file cannot be opened, also by root, as long as it is there by this name."""
    inode, os_open, io_open = path.stat().st_ino, os.open, io.open

    def refuse(asked: Any) -> None:
        if isinstance(asked, str | Path) and os.path.exists(asked) and os.stat(asked).st_ino == inode:
            raise PermissionError(13, "Permission denied", str(asked))

    def open_of_os(asked: Any, *rest: Any, **options: Any) -> Any:
        refuse(asked)
        return os_open(asked, *rest, **options)

    def open_of_io(asked: Any, *rest: Any, **options: Any) -> Any:
        refuse(asked)
        return io_open(asked, *rest, **options)

    class Both:
        def __enter__(self) -> None:
            self.patches = [patch.object(os, "open", open_of_os), patch.object(io, "open", open_of_io)]
            for one in self.patches:
                one.start()

        def __exit__(self, *_: object) -> None:
            for one in self.patches:
                one.stop()

    return Both()


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
