"""The questions of `accel config`: with a scripted user, and through a real terminal."""

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from accel_launch.cli.option_types import Value
from accel_launch.cli.options import BY_NAME
from accel_launch.config.config_wizard import ASKED, MORE, ONE, WHERE, ask_settings
from accel_testing import stretched

Run = Callable[..., "subprocess.CompletedProcess[str]"]

GPUS = ("0", "1", "2", "3")
TEXTS = {
    "num_machines": "How many machines?",
    "rdzv_backend": "How do the machines meet?",
    "machine_rank": "Which of them is this one? Answer differently on each machine, from 0",
    "main_process_ip": "The name or address of the machine where all meet?",
    "main_process_port": "The port there?",
    "cpu": "Compute on GPUs or on the CPU?",
    "num_processes": "How many processes?",
}
ENTER, DOWN, UP, CTRL_C, CTRL_D = b"\r", b"\x1b[B", b"\x1b[A", b"\x03", b"\x04"
BACK = b"\x7f"


class Scripted:
    """Answers some questions, by their text, and takes what is offered for the rest."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.refused: list[str] = []
        self.offered: dict[str, Sequence[str]] = {}

    def choose(self, text: str, about: str, titles: Sequence[str], default: int) -> int:
        assert about
        assert "Default" not in about
        self.asked.append(text)
        self.offered[text] = titles
        wanted = self.answers.get(text)
        return default if wanted is None else [title.split(":")[0] for title in titles].index(wanted)

    def write(self, text: str, about: str, default: str, problem: Callable[[str], str | None]) -> str:
        assert about
        self.asked.append(text)
        for word in self.answers.get(text, default).split(";"):
            why = problem(word)
            if why is None:
                return word
            self.refused.append(why)
        raise AssertionError(f"{text} {self.refused}")


def ask(
    gpus: Sequence[str], answers: Mapping[str, str] | None = None, before: Mapping[str, Value] | None = None
) -> tuple[dict[str, Value], Scripted]:
    user = Scripted({TEXTS.get(name, name): word for name, word in (answers or {}).items()})
    return ask_settings(user.choose, user.write, gpus, "host-a", before or {}), user


def test_each_question_is_of_an_option_that_a_file_may_set() -> None:
    assert all(BY_NAME[name].key for name in ASKED)
    values, _ = ask(GPUS, {WHERE: MORE, "num_processes": "2"})
    assert set(values) == set(ASKED)


def test_without_a_gpu_that_is_said_and_nothing_of_gpus_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    values, user = ask(())
    assert values == {
        "cpu": True,
        "num_processes": 1,
        "mixed_precision": "no",
        "gradient_accumulation_steps": 1,
    }
    assert len(user.asked) == 4
    assert "No GPU was found" in capsys.readouterr().out
    assert [title.split(":")[0] for title in user.offered["Which precision?"]] == ["no", "bf16", "fp16"]


def test_gpus_have_a_process_each() -> None:
    values, user = ask(GPUS)
    assert (values["cpu"], values["num_processes"]) == (False, 4)
    assert [title.split(":")[0] for title in user.offered["Which precision?"]][-1] == "fp8"
    values, user = ask(GPUS, {"num_processes": "5;2"})
    assert values["num_processes"] == 2
    assert user.refused == ["each process has a GPU of its own, and this machine has 4: expected 4 or fewer"]
    values, user = ask(GPUS, {"cpu": "CPU", "num_processes": "8"})
    assert (values["cpu"], values["num_processes"]) == (True, 8)


def test_several_machines_are_asked_how_they_meet() -> None:
    values, user = ask(GPUS, {WHERE: MORE, "num_machines": "1;2", "machine_rank": "2;1", "main_process_ip": " ;host-a"})
    assert user.refused == [
        "expected 2 or more",
        "expected 0 to 1",
        "expected the name or address of a machine, found ''",
    ]
    assert values == {
        "num_machines": 2,
        "rdzv_backend": "static",
        "machine_rank": 1,
        "main_process_ip": "host-a",
        "main_process_port": 29500,
        "cpu": False,
        "num_processes": 8,
        "use_fsdp": False,
        "mixed_precision": "no",
        "gradient_accumulation_steps": 1,
    }
    values, _ = ask(GPUS, {WHERE: MORE})
    assert (values["machine_rank"], values["main_process_ip"]) == (0, "host-a")
    _, user = ask(
        GPUS, {WHERE: MORE, "num_machines": "3", "num_processes": "8;15;12", "main_process_port": "0;70000;1"}
    )
    assert user.refused == [
        "machines must know it: expected 1 to 65535",
        "expected a port: a whole number below 65536, or 0, found '70000'",
        "each of the 3 machines starts as many: expected a multiple of 3",
        "each process has a GPU of its own, and this machine has 4: expected 12 or fewer",
    ]


def test_machines_that_number_themselves_are_asked_ten_questions() -> None:
    values, user = ask(GPUS, {WHERE: MORE, "rdzv_backend": "c10d", "main_process_ip": "host-b"})
    assert "machine_rank" not in values
    assert len(user.asked) == 10


def test_values_of_the_file_are_offered_and_dropped_if_they_do_not_fit() -> None:
    before: dict[str, Value] = {
        "num_machines": 2,
        "main_process_ip": "host-z",
        "num_processes": 64,
        "mixed_precision": "fp8",
        "gradient_accumulation_steps": 4,
        "grace_period": 90,
    }
    values, _ = ask((), {WHERE: ONE}, before)
    assert values == {
        "cpu": True,
        "num_processes": 64,
        "use_fsdp": False,
        "mixed_precision": "no",  # float8 needs a GPU
        "gradient_accumulation_steps": 4,
        "grace_period": 90,  # nothing asks for it
    }
    values, _ = ask(GPUS, {}, before)
    assert (values["main_process_ip"], values["num_processes"], values["mixed_precision"]) == ("host-z", 8, "fp8")


@pytest.mark.parametrize(("answers", "kept"), [({"num_processes": "2"}, True), ({}, False), ({"cpu": "CPU"}, False)])
def test_gpus_of_the_file_stay_if_they_are_as_many_as_processes(answers: dict[str, str], kept: bool) -> None:
    values, _ = ask(GPUS, {WHERE: ONE, **answers}, {"gpu_ids": "0,1", "num_processes": 4})
    assert values.get("gpu_ids") == ("0,1" if kept else None)


class Terminal:
    """`accel` on a terminal of its own; keys are sent only after the words that ask for them have come."""

    def __init__(self, folder: Path, environ: Mapping[str, str], arguments: Sequence[str]) -> None:
        self._ours, theirs = os.openpty()
        self.screen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "accel_launch", *arguments],
            cwd=folder,
            # A terminal that answers no questions about its cursor must not be waited for.
            env={**environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def answer(self, words: str, keys: bytes) -> None:
        """Waits for the words, which must come after those before, and sends keys."""
        self._read(lambda: words in self.screen)
        self.screen = self.screen.split(words, 1)[1]
        os.write(self._ours, keys)

    def finish(self) -> int:
        """The exit code; everything printed since the last answer is on the screen."""
        self._read(lambda: False)
        return self.process.wait(timeout=stretched(60))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _read(self, enough: Callable[[], bool]) -> None:
        until_s = time.monotonic() + stretched(60)
        while not enough():
            assert select.select([self._ours], [], [], max(0, until_s - time.monotonic()))[0], self.screen
            try:
                found = os.read(self._ours, 1 << 16)
            except OSError:  # on Linux: the last one to hold the other end has gone
                found = b""
            if not found:
                assert enough() or self.process.wait(timeout=stretched(60)) is not None
                return
            self.screen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode(errors="replace"))


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path, silent_environ: Mapping[str, str]) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*arguments: str, environ: Mapping[str, str] | None = None) -> Terminal:
        opened.append(Terminal(tmp_path, {**silent_environ, **(environ or {})}, arguments))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_answers_at_a_terminal_become_the_file_that_show_reads(terminal: Open, accel: Run, tmp_path: Path) -> None:
    """S101."""
    user = terminal("config")
    user.answer(WHERE, ENTER)
    user.answer("No GPU was found", b"")
    user.answer("How many processes? (1)", b"0" + ENTER)
    user.answer("expected a whole number of at least 1", BACK + b"3" + ENTER)
    user.answer("Where do the weights lie?", DOWN + ENTER)
    user.answer("Which precision?", DOWN + DOWN + UP + ENTER)
    user.answer("each step of the optimizer?", b"4" + ENTER)
    assert user.finish() == 0
    path = tmp_path / "no-config" / "default_config.yaml"
    assert f"written: {path}" in user.screen
    assert "accel test" in user.screen
    shown = yaml.safe_load(accel("config", "show").stdout)
    expected = {"use_cpu": True, "num_processes": 3, "use_fsdp": True, "mixed_precision": "bf16"}
    expected["gradient_accumulation_steps"] = 4
    assert {key: shown[key] for key in expected} == expected


def test_gpus_and_values_of_a_named_file_are_offered(terminal: Open, accel: Run, tmp_path: Path) -> None:
    """S103."""
    (tmp_path / "c.yaml").write_text("num_processes: 2\ngpu_ids: 4,6\nmixed_precision: fp16\ngrace_period: 90\n")
    user = terminal("config", "--config_file", "c.yaml", environ={"CUDA_VISIBLE_DEVICES": "4,5,6"})
    user.answer(WHERE, ENTER)
    user.answer("on GPUs or on the CPU?", ENTER)
    user.answer("How many processes?", ENTER)
    user.answer("Where do the weights lie?", ENTER)
    user.answer("Which precision?", ENTER)
    user.answer("each step of the optimizer?", ENTER)
    assert user.finish() == 0
    assert "accel test --config_file c.yaml" in user.screen
    shown = yaml.safe_load(accel("config", "show", "--config_file", "c.yaml").stdout)
    expected = {"num_processes": 2, "gpu_ids": "4,6", "mixed_precision": "fp16", "grace_period": 90}
    assert {key: shown[key] for key in expected} == expected


def test_what_is_typed_takes_the_place_of_the_default_and_enter_keeps_it(terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("num_processes: 4\ngradient_accumulation_steps: 8\nmax_restarts: 3\n")
    user = terminal("config", "--config_file", "c.yaml")
    user.answer(WHERE, ENTER)
    user.answer("How many processes? (4)", b"2" + ENTER)
    user.answer("Where do the weights lie?", ENTER)
    user.answer("Which precision?", ENTER)
    user.answer("each step of the optimizer? (8)", b"  " + ENTER)
    assert user.finish() == 0
    content = yaml.safe_load((tmp_path / "c.yaml").read_text())
    found = [content[key] for key in ("num_processes", "gradient_accumulation_steps", "max_restarts")]
    assert found == [2, 8, 3]


def test_several_machines_at_a_terminal(terminal: Open, accel: Run) -> None:
    user = terminal("config")
    user.answer(WHERE, DOWN + ENTER)
    user.answer("How many machines?", ENTER)
    user.answer("How do the machines meet?", ENTER)
    user.answer("Which of them is this one?", b"1" + ENTER)
    user.answer("where all meet?", b"10.0.0.1" + ENTER)
    user.answer("The port there?", ENTER)
    user.answer("How many processes?", ENTER)
    user.answer("Where do the weights lie?", ENTER)
    user.answer("Which precision?", ENTER)
    user.answer("each step of the optimizer?", ENTER)
    assert user.finish() == 0
    shown = yaml.safe_load(accel("config", "show").stdout)
    expected = {"num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.1", "num_processes": 2}
    assert {key: shown[key] for key in expected} == expected


@pytest.mark.parametrize("keys", [CTRL_C, CTRL_D], ids=["Ctrl-C", "Ctrl-D"])
def test_ctrl_c_writes_nothing_and_exits_130(terminal: Open, tmp_path: Path, keys: bytes) -> None:
    (tmp_path / "c.yaml").write_text("num_processes: 2\n")
    user = terminal("config", "--config_file", "c.yaml")
    user.answer(WHERE, ENTER)
    user.answer("How many processes?", keys)
    assert user.finish() == 130
    assert "nothing was written" in user.screen
    assert "Traceback" not in user.screen
    assert (tmp_path / "c.yaml").read_text() == "num_processes: 2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_a_file_that_cannot_be_followed_is_refused_before_any_question(terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("downcast_bf16: true\n")
    user = terminal("config", "--config_file", "c.yaml")
    assert user.finish() == 2
    assert "downcast_bf16" in user.screen
    assert WHERE not in user.screen
