"""`accel checkpoint`: what people type, what they read, and the exit code."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from accel_launch.cli import main

if TYPE_CHECKING:
    import subprocess


pytest.importorskip("accel_checkpoint", reason="package accel-checkpoint writes the checkpoints")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass
class Done:
    """What a command line has come to."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def within(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs `accel` in this process, where torch is loaded once."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        code = main(arguments)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


def written(folder: Path, value: float = 1.0, steps: int = 3, extra: bool = False) -> Path:
    """A checkpoint of a model and of something registered."""
    import torch
    from accel_checkpoint import Manifest, StagedCheckpoint

    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = StagedCheckpoint(folder)
    weights = {"weight": torch.full((2, 3), value), "bias": torch.zeros(2)}
    stage.write_tensors("model.safetensors", weights | ({"more": torch.ones(1)} if extra else {}))
    items = {
        "model": {"kind": "model", "files": ["model.safetensors"], "state": {}},
        "object:count": {"kind": "Count", "file": "state.safetensors", "state": {"steps": steps}},
    }
    about = {"accel": "1", "world": 2, "steps": steps, "written": "2026-01-01T00:00:00+00:00"}
    manifest: Manifest = Manifest(about, stage.files, items, [{}, {}])
    stage.seal(manifest)
    stage.commit()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three checkpoints, the second of which is damaged, and something else."""
    for number in (2, 9, 10):
        written(tmp_path / "runs" / "checkpoints" / f"checkpoint_{number}", number, number * 100)
    weights = tmp_path / "runs" / "checkpoints" / "checkpoint_9" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (tmp_path / "runs" / "checkpoints" / "notes").mkdir()
    return tmp_path / "runs"


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize("inner", ["", "checkpoints"])
def test_ls_lists_the_checkpoints_of_a_folder_by_number(inner: str, within: Callable[..., Done], project: Path) -> None:
    done = within("checkpoint", "ls", str(project / inner))
    assert (done.returncode, done.stderr) == (0, "")
    head, *listed = rows(done.stdout)
    assert head == ["written", "steps", "processes", "size", "layout"]
    assert [row[0] for row in listed] == ["checkpoint_2", "checkpoint_9", "checkpoint_10"]
    assert listed[0][1:4] == ["2026-01-01T00:00:00+00:00", "200", "2"]


def test_ls_says_which_are_not_whole(within: Callable[..., Done], project: Path) -> None:
    (project / "checkpoints" / "checkpoint_2" / "model.safetensors").write_bytes(b"short")
    (project / "checkpoints" / "checkpoint_10" / "manifest.json").write_text("{}")
    done = within("checkpoint", "ls", str(project))
    assert done.returncode == 0
    lines = {row[0]: " ".join(row) for row in rows(done.stdout)}
    assert "not whole: accel checkpoint verify says what is missing" in lines["checkpoint_2"]
    assert "manifest.json is damaged" in lines["checkpoint_10"]


def test_ls_of_one_lists_its_files_and_its_state(within: Callable[..., Done], project: Path) -> None:
    done = within("checkpoint", "ls", str(project / "checkpoints" / "checkpoint_2"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "steps 200" in done.stdout
    assert ["object:count", "Count", "state.safetensors"] in rows(done.stdout)
    assert "random numbers of 2 process(es)" in done.stdout


def test_verify_reads_every_byte_and_exits_1_on_damage(accel_program: Run, project: Path) -> None:
    done = accel_program("checkpoint", "verify", str(project))
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert [("whole" in line, "damaged" in line) for line in lines if not line.startswith(" ")] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert any(line.startswith("  ") and "checkpoint_9/model.safetensors is damaged" in line for line in lines)
    done = accel_program("checkpoint", "verify", str(project / "checkpoints" / "checkpoint_10"))
    assert (done.returncode, done.stdout.count("whole, 1 files")) == (0, 1)


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_verify_finds_any_byte_that_is_changed_and_any_that_is_missing(
    name: str, within: Callable[..., Done], tmp_path: Path
) -> None:
    folder = written(tmp_path / "one")
    original = (folder / name).read_bytes()
    for content in (original[:-1], original + b"\n", b"", original[:9] + b"\x00" + original[10:]):
        (folder / name).write_bytes(content)
        done = within("checkpoint", "verify", str(folder))
        assert done.returncode == 1, (content, done.stdout)
        assert name in done.stdout
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ("Usage: accel checkpoint ", "ls ", "verify ", "exit codes")),
        (["verify", "-h"], ("Usage: accel checkpoint verify [OPTIONS] PATH", "manifest")),
    ],
)
def test_help_says_what_there_is(arguments: list[str], words: tuple[str, ...], accel: Run) -> None:
    done = accel("checkpoint", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    for word in words:
        assert word in done.stdout


def test_without_a_command_there_is_help(accel: Run) -> None:
    done = accel("checkpoint")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("Usage: accel checkpoint")


WRONG = {
    "No such command 'list'. Did you mean 'ls'?": ["list", "x"],
    "Missing argument 'PATH'": ["ls"],
    "Got unexpected extra argument (other)": ["verify", "one", "other"],
    "No such option '--all'": ["ls", "--all"],
    "missing": ["ls", "missing"],
    "nothing": ["verify", "nothing"],
}


@pytest.mark.parametrize("said", WRONG)
def test_what_cannot_be_done_is_said_with_exit_code_2(said: str, within: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    done = within("checkpoint", *WRONG[said])
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_manifest_that_lies_is_no_way_out_of_its_folder(within: Callable[..., Done], tmp_path: Path) -> None:
    """T12: with a hash that is right."""
    from accel_checkpoint import read_manifest

    folder = written(tmp_path / "one")
    manifest = read_manifest(folder)
    (tmp_path / "outside").write_text("secret")
    for name in ("../outside", "/etc/hostname", "inner/../../outside"):
        manifest.files[name] = manifest.files["model.safetensors"]
        (folder / "manifest.json").write_bytes(manifest.as_bytes())
        for command in (["ls", str(folder)], ["verify", str(folder)]):
            done = within("checkpoint", *command)
            assert done.returncode in (1, 2)
            assert "outside of its folder" in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
        del manifest.files[name]


def test_control_characters_of_a_manifest_do_not_reach_the_terminal(
    within: Callable[..., Done], tmp_path: Path
) -> None:
    from accel_checkpoint import read_manifest

    folder = written(tmp_path / "one")
    manifest = read_manifest(folder)
    manifest.about["written"] = "\x1b[2J\x1b]0;owned\x07"
    (folder / "manifest.json").write_bytes(manifest.as_bytes())
    for path in (folder, tmp_path):
        assert "\x1b" not in within("checkpoint", "ls", str(path)).stdout


def test_entries_that_are_odd_are_no_traceback(within: Callable[..., Done], tmp_path: Path) -> None:
    """A manifest of a newer version, or of a forger: with a right hash, and of other types."""
    from accel_checkpoint import read_manifest

    folder = written(tmp_path / "one")
    original = read_manifest(folder)
    for about, items in (
        ({}, original.items),
        ({"steps": [1], "world": None}, {}),
        ({}, {"model": 5}),
        ({}, {"x": {}}),
    ):
        original.about.clear()
        original.about.update(about)
        kept = dict(original.items)
        original.items.clear()
        original.items.update(items)
        (folder / "manifest.json").write_bytes(original.as_bytes())
        original.items.clear()
        original.items.update(kept)
        for path in (folder, tmp_path):
            done = within("checkpoint", "ls", str(path))
            assert "Traceback" not in done.stderr, (about, items, done.stderr)
