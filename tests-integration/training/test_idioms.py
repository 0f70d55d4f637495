"""Scripts in the idiom of Accelerate, rewritten by `accel migrate`, give on two processes what they give on one."""

import os
import runpy
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from accel_compat.migrate.replacement import replace_files
from accel_compat.migrate.report import Kind
from accel_compat.migrate.source_file import migrate
from accel_state import release
from accel_testing import MakePool, stretched
from accel_verify.runner import compare, record, run_script
from silent_environ import silent
from suite.soak import in_soak

SCRIPTS = Path(__file__).parents[1] / "idioms"


def migrated(name: str, folder: Path) -> Path:
    """A script of this folder, rewritten in another; nothing in it needs a hand."""
    path = Path(shutil.copy(SCRIPTS / name, folder))
    migration = migrate(path)
    assert migration.changes
    assert [note.words for note in migration.after.notes if note.kind is Kind.BY_HAND] == []
    assert not replace_files([migration])
    assert not migrate(path).changes
    return path


def run_main(path: Path, folder: Path | None) -> Any:
    main = runpy.run_path(str(path))["main"]
    return main() if folder is None else main(str(folder))


def results(world: MakePool, name: str, folder: Path, *, files: bool = False) -> tuple[Any, Any]:
    """What a script gives on one and on two processes, of which the first is asked."""
    path = migrated(name, folder)
    one = world(1).run(run_main, path, folder / "one" if files else None)
    two = world(2).run(run_main, path, folder / "two" if files else None)
    return one[0], two[0]


def test_sentence_pairs_with_dynamic_padding(world: MakePool, tmp_path: Path) -> None:
    """S11, S183: the example of sentence pairs, padded to the longest of each batch."""
    one, two = results(world, "sentence_pairs.py", tmp_path)
    assert one["seen"] == two["seen"] == 200
    assert one["accuracy"] == two["accuracy"] > 0.9
    assert two["weights"] == pytest.approx(one["weights"], abs=1e-3)


def test_classification(world: MakePool, tmp_path: Path) -> None:
    """S183."""
    one, two = results(world, "classification.py", tmp_path)
    assert one["seen"] == two["seen"] == 101
    assert one["accuracy"] == two["accuracy"] > 0.9
    assert two["weights"] == pytest.approx(one["weights"], abs=1e-3)


def test_causal_language_model(world: MakePool, tmp_path: Path) -> None:
    """S183: with the module as `accelerate`, and a submodule that it reaches through it."""
    one, two = results(world, "causal_language_model.py", tmp_path)
    assert one["perplexity"] == pytest.approx(two["perplexity"], rel=1e-3)
    assert one["perplexity"] < 3


def test_checkpoints_by_step_and_by_epoch(world: MakePool, tmp_path: Path) -> None:
    """S183: a run that was cut is the whole run."""
    one, two = results(world, "checkpointing.py", tmp_path, files=True)
    for run in (one, two):
        for name in ("by_step", "by_epoch"):
            assert run[name]["weights"] == pytest.approx(run["whole"]["weights"], abs=1e-6)
            assert (run[name]["steps"], run[name]["rate"]) == (16, pytest.approx(run["whole"]["rate"]))
    assert two["whole"]["weights"] == pytest.approx(one["whole"]["weights"], abs=1e-5)


def test_tracking(world: MakePool, tmp_path: Path) -> None:
    """S183: a tracker of the script's own."""
    one, two = results(world, "tracking.py", tmp_path, files=True)
    assert [line.get("step") for line in two["lines"]] == [None, 0, 1, 2, 3]
    losses = [[line["train_loss"] for line in run["lines"][1:]] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_early_stopping(world: MakePool, tmp_path: Path) -> None:
    """S183: all processes end at the same step."""
    one, two = results(world, "early_stopping.py", tmp_path)
    assert one["stopped"]
    assert two["stopped"]
    assert len(set(two["steps"])) == 1


def test_local_sgd(world: MakePool, tmp_path: Path) -> None:
    """S183: at the end the weights are the same everywhere, and those that the data has."""
    one, two = results(world, "local_sgd.py", tmp_path)
    assert two["weights"][0] == two["weights"][1]
    for weights in (one["weights"][0], two["weights"][0]):
        assert weights == pytest.approx([1.0, -2.0, 0.5], abs=0.1)


def test_cross_validation(world: MakePool, tmp_path: Path) -> None:
    """S183."""
    one, two = results(world, "cross_validation.py", tmp_path)
    assert one["seen"] == two["seen"] == 31
    assert one["accuracy"] == two["accuracy"] > 0.85


def test_automatic_accumulation(world: MakePool, tmp_path: Path) -> None:
    """S183: the weights are those of the batch that did not fit."""
    one, two = results(world, "automatic_accumulation.py", tmp_path)
    for run in (one, two):
        assert run["tried"][0] == 16
        assert run["tried"][-1] == 8
    assert two["weights"] == pytest.approx(one["weights"], abs=1e-5)


def test_big_model_inference(world: MakePool, tmp_path: Path) -> None:
    """S183."""
    one, two = results(world, "big_model_inference.py", tmp_path, files=True)
    assert one["empty"]
    assert one["files"] > 1
    assert len(one["answers"]) == 5
    assert two.pop("answers") == pytest.approx(one.pop("answers"))
    assert two == one


def verify(path: Path, folder: Path) -> tuple[str, ...]:
    """What `accel verify` says of the steps of a script, in this process alone."""
    script = partial(run_script, str(path), [], module=False)
    os.chdir(folder)
    record(script, folder, 0, 24)
    release()
    return compare(script, folder, 24).lines


@pytest.mark.parametrize(
    "name", ["sentence_pairs", "tracking", *in_soak("causal_language_model", "cross_validation", "early_stopping")]
)
def test_accel_verify_has_nothing_to_say_of_a_right_script(name: str, world: MakePool, tmp_path: Path) -> None:
    first, *more = world(1).run(verify, migrated(f"{name}.py", tmp_path), tmp_path)[0]
    assert first.startswith("accel verify: nothing differs in")
    assert [line for line in more if "warning" in line] == []


def test_sharded_by_a_config_file(tmp_path: Path, forking_python: str) -> None:
    """S183: the classifier by a script of the shell, with a file that `accelerate config` has written."""
    for name in ("classification.py", "fsdp.yaml", "fsdp.sh"):
        migrated(name, tmp_path)
    command = tmp_path / "accel"
    command.write_text(f'#!/bin/sh\nexec {forking_python} -m accel "$@"\n')
    command.chmod(0o755)
    environ = silent(tmp_path)
    environ["PATH"] = f"{tmp_path}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        ["sh", "fsdp.sh"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=stretched(100),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    accuracy, seen = (float(word.rstrip(",")) for word in done.stdout.split()[1:4:2])
    assert (accuracy > 0.9, seen) == (True, 101)
