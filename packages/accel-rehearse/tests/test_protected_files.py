"""A rehearsal changes no file that was there, and leaves none behind."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from accel import Accelerator
from accel.checkpoint.checkpointer import Checkpointer
from accel_parallel.stages.compile import compile_in_place
from accel_rehearse.protected_files import protecting, remove_made
from accel_rehearse.refusal import CannotRehearse
from accel_rehearse.surroundings import writing_nothing
from torch import nn

pytestmark = pytest.mark.timeout(300)
Rehearse = Callable[..., Any]
PROGRAM = (Path(__file__).parent / "programs" / "classify.py").read_text()
LAST = '    accelerator.save_model(model, "out")\n'
IMPORTS = "    import json, os, shutil\n    from safetensors.torch import save_file\n"
NEW = f"""{IMPORTS}    os.makedirs("made/deep", exist_ok=True)
    open("made/notes", "w").close()
    save_file(model.state_dict(), "model.safetensors")
    if accelerator.is_main_process:
        with open("made/weights.pt", "wb") as file:
            torch.save(model.state_dict(), file)
        with open("made/part", "w") as file:
            json.dump({{"loss": total}}, file)
        os.replace("made/part", "made/results.json")
        with open("made/results.json", "a") as file:
            file.write("more")
        os.makedirs("old_run")
        open("old_run/notes", "w").close()
        shutil.rmtree("old_run")
"""


def program(folder: Path, last: str) -> Path:
    script = folder / "writes.py"
    script.write_text(PROGRAM.replace(LAST, last))
    return script


def test_files_that_a_script_makes_are_gone_at_the_end(tmp_path: Path, rehearse: Rehearse) -> None:
    found = rehearse(program(tmp_path, NEW), "-n", "2")
    assert found.code == 0, found.words
    assert {path.name for path in tmp_path.iterdir()} == {"writes.py", "rehearsal.json"}


def test_a_script_that_removes_what_was_there_is_refused(tmp_path: Path, rehearse: Rehearse) -> None:
    (tmp_path / "runs" / "checkpoint_0").mkdir(parents=True)
    (tmp_path / "runs" / "checkpoint_0" / "weights").write_text("mine")
    script = program(tmp_path, f'{IMPORTS}    shutil.rmtree("runs/checkpoint_0")\n')
    found = rehearse(script, "-n", "2", "--ranks", "0")
    assert found.code == 2, found.words
    assert (tmp_path / "runs" / "checkpoint_0" / "weights").read_text() == "mine"
    (refusal,) = found.report["refusals"]
    lines = script.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "shutil.rmtree" in line)
    assert refusal["line"] == f"{script}:{number}"
    assert "shutil.rmtree is to change" in refusal["what"]
    assert "--in_place" in refusal["what"]
    assert rehearse(script, "-n", "2", "--ranks", "0", "--in_place").code == 0
    assert not (tmp_path / "runs" / "checkpoint_0").exists()


def test_a_rehearsal_needs_no_library_that_accel_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with _writing_nothing():
        torch.save(nn.Linear(1, 1), tmp_path / "weights")
    assert not list(tmp_path.iterdir())


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    weights, accelerator = {"weight": torch.ones(2)}, Accelerator(cpu=True)
    with _writing_nothing():
        torch.save(weights, tmp_path / "by torch")
        accelerator.save(weights, tmp_path / "by accel")
        assert torch.load(tmp_path / "by torch") is weights
        assert torch.load(tmp_path / "by accel") is weights
    assert not list(tmp_path.iterdir())


def test_no_model_is_compiled() -> None:
    model = nn.Linear(1, 1)
    with _writing_nothing():
        assert torch.compile(print) is print
        for compiling in (model.compile, lambda: torch.compile(model), lambda: compile_in_place([model])):
            with pytest.raises(CannotRehearse, match="Linear is to be compiled"):
                compiling()


def test_a_script_that_is_asked_to_stop_ends_well() -> None:
    """In a job it ends with exit code 75, which is no mistake."""
    checkpointer: Any = Checkpointer
    with _writing_nothing(), pytest.raises(SystemExit) as ended:
        checkpointer.save_and_stop(Mock())
    assert ended.value.code == 0


@contextmanager
def _writing_nothing() -> Iterator[None]:
    with ExitStack() as stack:
        for patch in writing_nothing(lambda call: None):
            stack.enter_context(patch)
        yield


def test_a_folder_in_which_something_else_is_stays(tmp_path: Path) -> None:
    """A cache that the script makes first may be used by others meanwhile."""
    made = [tmp_path / "cache", tmp_path / "cache" / "empty", tmp_path / "cache" / "notes", tmp_path / "gone"]
    made[1].mkdir(parents=True)
    made[2].write_text("made")
    (tmp_path / "cache" / "theirs").write_text("theirs")
    listed = tmp_path.parent / "listed"
    listed.write_text("".join(f"{path}\n" for path in made))
    remove_made(listed)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")} == {"cache", "cache/theirs"}


def test_caches_are_those_that_variables_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("real")
    for folder in ("hub", "torch", "hub_of_mine"):
        (tmp_path / "real" / folder).mkdir(parents=True)
        (tmp_path / "real" / folder / "data").write_text("mine")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "link" / "hub"))
    monkeypatch.setenv("TORCH_HOME", "~/torch")
    monkeypatch.setenv("HOME", str(tmp_path / "real"))
    monkeypatch.setenv("HF_HOME", "")
    check = protecting(tmp_path / "made")
    (tmp_path / "made").touch()
    check("open", (str(tmp_path / "link" / "hub" / "data"), "w", os.O_WRONLY))
    check("open", (str(tmp_path / "real" / "torch" / "data"), "w", os.O_WRONLY))
    with pytest.raises(CannotRehearse, match="was there before"):
        check("open", (str(tmp_path / "real" / "hub_of_mine" / "data"), "w", os.O_WRONLY))


def test_each_way_to_change_what_was_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    made_list = tmp_path / ".made" / "list"
    made_list.parent.mkdir()
    made_list.touch()
    check = protecting(made_list)
    check("os.mkdir", ("new", 0o777, -1))
    (tmp_path / "new").mkdir()
    refused: list[tuple[str, tuple[Any, ...]]] = [
        ("open", ("link", "w", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)),
        ("open", (b"mine", "a", os.O_WRONLY | os.O_APPEND)),
        ("os.remove", ("mine", -1)),
        ("os.remove", ("link", -1)),
        ("os.rmdir", (str(tmp_path), -1)),
        ("os.rename", ("new", "mine", -1, -1)),
        ("shutil.rmtree", ("new/..", None)),
    ]
    for event, args in refused:
        with pytest.raises(CannotRehearse, match="was there before"):
            check(event, args)
    allowed: list[tuple[str, tuple[Any, ...]]] = [
        ("open", ("mine", "r", os.O_RDONLY)),
        ("open", (1, "w", os.O_WRONLY)),
        ("open", ("/dev/null", "w", os.O_WRONLY)),
        ("os.mkdir", (str(tmp_path), 0o777, -1)),
        ("shutil.rmtree", ("new", None)),
        ("import", ("os",)),
    ]
    for event, args in allowed:
        check(event, args)
