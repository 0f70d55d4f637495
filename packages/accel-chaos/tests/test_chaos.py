"""`accel chaos` runs a script with faults, and tells what became of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accel_launch.cli import main

Chaos = Callable[..., tuple[int, str, dict[str, Any]]]
SCRIPT = Path(__file__).parent / "recovering.py"


@pytest.mark.timeout(300)
def test_a_script_that_resumes_recovers_from_faults(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, chaos: Chaos
) -> None:
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    kinds = "SIGKILL,SIGTERM,full-disk"
    code, text, verdict = chaos("-n", "2", "--kinds", kinds, "--faults", "3", "--seed", "4", SCRIPT)
    assert code == 0, text
    assert (verdict["recovered"], verdict["cause"], verdict["weights_equal"]) == (True, None, True)
    assert (verdict["samples_lost"], verdict["samples_repeated"]) == (0, 0)
    assert {fault["kind"] for fault in verdict["faults"]} == {*kinds.split(",")}
    for fault in verdict["faults"]:
        assert fault["seconds_to_next_step"] > 0
        assert fault["steps_repeated"] <= 5
        assert f"{fault['kind']} on rank {fault['rank']} in {fault['phase']}" in text
    assert "at most 5 min" in text
    assert not list((tmp_path / "here").iterdir()), "outputs go into copies"
    assert not list(temporary.glob("accel-chaos-*"))


@pytest.mark.timeout(300)
def test_a_run_that_fails_undisturbed_is_told(tmp_path: Path, chaos: Chaos) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise LookupError('mine')\n")
    code, text, _ = chaos("-n", "1", script)
    assert code == 2
    assert "LookupError: mine" in text
    assert "the undisturbed run: 0 optimizer steps in " in text
    assert "the undisturbed run already fails, with exit code 1" in text


def test_the_command_refuses_what_it_cannot_read(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["chaos", "--cpu", "--kinds", "SIGKIL", "--at", "step", "--budget", "soon", "--at", "lunch:3", "missing.py"]
    assert main(asked) == 2
    problems = capsys.readouterr().err
    for problem in ("--kinds: expected kinds of SIGKILL,", "--at: expected a place such as", "--budget: expected"):
        assert problem in problems


def test_no_job_of_a_scheduler_is_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--submit", "slurm", "train.py"]) == 2
    assert "--submit" in capsys.readouterr().err


def test_help_names_kinds_phases_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--help"]) == 0
    text = capsys.readouterr().out
    for words in ("--faults N", "SIGSTOP-forever", "loader-worker", "accel chaos --seed 7 --only 3", "exit codes:"):
        assert words in text
