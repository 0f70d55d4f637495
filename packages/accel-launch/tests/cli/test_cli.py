"""The real command line, from the shell's side."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
from accel_launch.cli.launch_command import HEADINGS
from accel_launch.cli.options import OPTIONS
from accel_launch.cli.program import EXTRAS

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SHOW = """\
import os, sys
names = ("RANK", "WORLD_SIZE", "ACCEL_USE_CPU", "ACCEL_MIXED_PRECISION", "ACCEL_STORE_PORT")
line = " ".join([*sys.argv[1:], *(f"{n}={os.environ[n]}" for n in names if n in os.environ)])
sys.stdout.write(line + "\\n")
"""


@pytest.fixture
def show(tmp_path: Path) -> str:
    (tmp_path / "show.py").write_text(SHOW)
    return "show.py"


def test_what_a_queue_is_told_starts_nothing_here(accel: Run, show: str) -> None:
    done = accel("launch", "--submit_options", "partition=gpu", show)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--submit_options needs --submit" in done.stderr


def test_without_the_package_that_submits_it_is_said_how_to_get_it(
    accel: Run, show: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    done = accel("launch", "--submit", "slurm", "show.py")
    assert done.returncode == 2
    assert done.stderr == (
        "accel: error: --submit slurm: it needs package accel-submit:"
        " in a clone of accel, pip install ./packages/accel-submit\n"
    )


def test_the_command_alone_prints_help_and_exits_1(accel: Run) -> None:
    done = accel()
    assert (done.returncode, done.stderr) == (1, "")
    assert "Usage: accel" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["launch", "--help"], ["test", "-h"], ["env", "--help"]])
def test_help_is_printed(accel: Run, arguments: list[str]) -> None:
    done = accel(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: accel")


def test_the_help_lists_every_option_with_its_key_and_variable(accel: Run) -> None:
    """S108b."""
    words = "".join(accel("launch", "--help").stdout.split())
    for option in OPTIONS:
        assert all(flag in words for flag in option.opts)
        assert "".join(option.about.split()) in words
        assert not option.key or f"file:{option.key}" in words
        assert not option.envvar or f"variable:{option.envvar}" in words


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_the_help_fits_the_terminal_and_divides_no_word(accel: Run, columns: int) -> None:
    done = accel("launch", "--help", environ={"COLUMNS": str(columns)})
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= max(columns, 60)
    words = set(done.stdout.split())
    for option in OPTIONS:
        assert set(str(option.help).split()) <= words


def test_the_help_has_a_heading_before_each_group_of_options(accel: Run) -> None:
    lines = accel("launch", "--help").stdout.splitlines()
    for name, heading in HEADINGS.items():
        assert f"--{name} " in lines[lines.index(f"  {heading}:") + 1]


def test_the_version_is_printed(accel_program: Run) -> None:
    assert accel_program("--version").stdout == f"accel {version('accel-launch')}\n"


def test_an_unknown_command_names_the_nearest(accel: Run) -> None:
    done = accel("lunch")
    assert done.returncode == 2
    assert done.stderr.startswith("accel: error: there is no command 'lunch'; did you mean 'launch'?")


def test_another_package_adds_a_command(accel: Run, accel_program: Run, tmp_path: Path) -> None:
    """By an entry point of the group `accel.commands`."""
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[accel.commands]\nhello = other:COMMAND\nbye = other:BYE\n")
    (tmp_path / "other.py").write_text(
        "import click\n@click.command(short_help='greet')\n@click.argument('name')\n"
        "def COMMAND(name):\n    print('hello', name)\n    return 3\n"
        "@click.command(help='Parts. Then goes.')\ndef BYE():\n    return 0\n"
    )
    for run in (accel, accel_program):
        done = run("hello", "you")
        assert (done.returncode, done.stdout, done.stderr) == (3, "hello you\n", "")
    assert "  hello            greet\n" in accel("--help").stdout
    assert "  bye              Parts.\n" in accel("--help").stdout
    assert "did you mean 'hello'?" in accel("helo").stderr


def test_another_package_adds_a_scheduler(accel: Run, tmp_path: Path) -> None:
    """By an entry point of the group `accel.schedulers`; nothing is imported but the scheduler that is asked for."""
    info = tmp_path / "accel_pbs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: accel-pbs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[accel.schedulers]\npbs = accel_pbs:PbsScheduler\nlsf = accel_lsf:No\n")
    (tmp_path / "accel_pbs.py").write_text(
        "class PbsScheduler:\n    def submit(self, options, *, cwd, say):\n        say(f'queues {options.script}')\n"
    )
    done = accel("launch", "--submit", "pbs", "train.py")
    assert (done.returncode, done.stderr) == (0, "queues train.py\n")
    done = accel("launch", "--submit", "pbz", "train.py")
    assert done.returncode == 2
    known = "the schedulers are: slurm, sagemaker, kubernetes, lsf, pbs\n"
    assert f"--submit pbz: there is no such scheduler; did you mean 'pbs'?; {known}" in done.stderr


@pytest.mark.parametrize(("command", "extra"), EXTRAS.items())
def test_a_command_of_a_package_that_is_not_installed_says_which(
    accel: Run, monkeypatch: pytest.MonkeyPatch, command: str, extra: str
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    done = accel(command, "x")
    assert done.returncode == 2
    missing = f"accel {command} comes with package accel-{extra}, which is not installed for {sys.executable}"
    assert done.stderr == f"accel: error: {missing}: in a clone of accel, pip install ./packages/accel-{extra}\n"


def test_one_process_has_its_arguments_and_no_rank(accel_program: Run, show: str) -> None:
    """S106."""
    done = accel_program("launch", "--mixed-precision", "bf16", show, "--cpu", "-n", "4", "--", "-h")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "--cpu -n 4 -- -h ACCEL_MIXED_PRECISION=bf16\n"


def test_several_processes_have_their_ranks_and_nothing_else_is_said(accel_program: Run, show: str) -> None:
    """S109."""
    done = accel_program("launch", "-n", "2", "--cpu", show, "x")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.rsplit(" ", 1)[0] for line in sorted(done.stdout.splitlines())]
    assert lines == [f"x RANK={rank} WORLD_SIZE=2 ACCEL_USE_CPU=1" for rank in (0, 1)]


def test_a_named_config_file_is_used_and_the_flag_beats_it(accel_program: Run, show: str, tmp_path: Path) -> None:
    """S107."""
    (tmp_path / "two.yaml").write_text("num_processes: 2\nmixed_precision: bf16\n")
    done = accel_program("launch", "--config_file", "two.yaml", "--mixed_precision", "no", show)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("WORLD_SIZE=2 ACCEL_MIXED_PRECISION=no") == 2


def test_the_default_config_file_sets_the_count(accel_program: Run, show: str, tmp_path: Path) -> None:
    """S104b."""
    (tmp_path / "default_config.yaml").write_text("num_processes: 4\n")
    done = accel_program("launch", show, environ={"ACCEL_HOME": str(tmp_path)})
    assert done.stdout.count("WORLD_SIZE=4") == 4


def test_without_a_config_there_is_a_process_for_each_accelerator(accel_program: Run, show: str) -> None:
    """S104b."""
    assert accel_program("launch", show, environ={"CUDA_VISIBLE_DEVICES": "0,1,2"}).stdout.count("WORLD_SIZE=3") == 3


def test_decision_10_under_torchrun_the_place_is_kept(accel: Run, accel_program: Run, show: str) -> None:
    place = {"RANK": "1", "WORLD_SIZE": "2"}
    assert accel_program("launch", show, environ=place).stdout == "RANK=1 WORLD_SIZE=2\n"
    done = accel("launch", "-n", "2", show, environ=place)
    assert done.returncode == 2
    assert "choose one of the two" in done.stderr


def test_everything_that_is_wrong_is_told_at_once_and_nothing_starts(accel: Run, show: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("downcast_bf16: true\nprocesses: 4\n")
    done = accel("launch", "--config_file", "bad.yaml", "-n", "0", "shwo.py", environ={"ACCEL_MIXED_PRECISION": "fp7"})
    assert (done.returncode, done.stdout) == (2, "")
    first, *rest = done.stderr.splitlines()
    assert first == "accel: error: 5 problems"
    for words in (
        "--num_processes: expected",
        "ACCEL_MIXED_PRECISION in the environment: 'fp7'",
        "downcast_bf16: 'true'",
        "'processes'",
        "'show.py'?",
    ):
        assert any(words in line for line in rest)


def test_one_problem_is_one_line(accel: Run, tmp_path: Path) -> None:
    done = accel("launch", "nothing.py")
    assert done.stderr == f"accel: error: script 'nothing.py' does not exist (working directory {tmp_path})\n"
    assert done.returncode == 2


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_module_and_a_program_are_started(accel_program: Run, show: str, count: str) -> None:
    assert accel_program("launch", "-n", count, "-m", "show", "m").stdout.count("m") == int(count)
    assert accel_program("launch", "-n", count, "--no_python", "echo", "-n", "p").stdout == "p" * int(count)


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_program_that_cannot_be_started_is_one_line(accel_program: Run, count: str) -> None:
    done = accel_program("launch", "--cpu", "-n", count, "--no_python", "./absent")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"accel: error: .*\./absent.*No such file or directory.*\n", done.stderr)


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_module_that_is_not_there_is_said_by_python(accel_program: Run, count: str) -> None:
    done = accel_program("launch", "--cpu", "-n", count, "-m", "absent")
    assert done.returncode == 1
    assert "No module named absent" in done.stderr
    assert "File " not in done.stderr


@pytest.mark.parametrize("count", ["1", "2"])
def test_stdin_reaches_the_script(accel_program: Run, tmp_path: Path, count: str) -> None:
    (tmp_path / "read.py").write_text(
        "import os, sys, time\n"
        "rank, size = os.environ.get('RANK', '0'), os.environ.get('WORLD_SIZE', '1')\n"
        "while rank == '0' and size == '2' and not os.path.exists('1-has-read'): time.sleep(0.01)\n"
        "sys.stdout.write(f'{rank} {sys.stdin.read()!r}\\n')\n"
        "open(rank + '-has-read', 'w').close()\n"
    )
    done = accel_program("launch", "-n", count, "read.py", input="one\ntwo")
    assert sorted(done.stdout.splitlines()) == [r"0 'one\ntwo'", "1 ''"][: int(count)]


def test_the_environment_is_described_with_the_origin_of_each_value(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("num_processes: 2\nuse_cpu: true\n")
    done = accel("env", "--config_file", "c.yaml", "-n", "3", environ={"ACCEL_MIXED_PRECISION": "bf16"})
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "python: ",
        "torch: ",
        "config file: c.yaml\n",
        "  num_processes: 3  # flag\n",
        "  use_cpu: true  # config file c.yaml\n",
        "  mixed_precision: bf16  # environment ACCEL_MIXED_PRECISION\n",
        "  gpu_ids: null  # default: the visible GPUs\n",
        "  ACCEL_MIXED_PRECISION=bf16\n",
    ):
        assert words in done.stdout


def test_a_broken_config_file_is_described_and_refused(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("nonsense: 2\n")
    done = accel("env", "--config_file", "c.yaml")
    assert done.returncode == 2
    assert "config file: c.yaml\n" in done.stdout
    assert "unknown key 'nonsense'" in done.stderr


@pytest.fixture
def with_check(tmp_path: Path, silent_environ: Mapping[str, str]) -> Callable[[str], dict[str, str]]:
    """Ships a module accel.tools.self_test of one's own, ahead of any other."""

    def ship(code: str) -> dict[str, str]:
        root = tmp_path / "shipped"
        tools = root / "accel" / "tools"
        tools.mkdir(parents=True)
        (tools.parent / "__init__.py").write_text("")
        (tools / "__init__.py").write_text("")
        (tools / "self_test.py").write_text(code)
        return {"PYTHONPATH": f"{root}:{silent_environ['PYTHONPATH']}"}

    return ship


@pytest.mark.parametrize(("count", "said"), [("1", "1 process"), ("2", "2 processes")])
def test_the_check_ends_with_a_line_of_success(
    accel_program: Run, with_check: Callable[[str], dict[str, str]], tmp_path: Path, count: str, said: str
) -> None:
    """S105."""
    (tmp_path / "c.yaml").write_text(f"num_processes: {count}\n")
    done = accel_program("test", "--config_file", "c.yaml", environ=with_check("print('checked')"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("checked") == int(count)
    assert done.stdout.splitlines()[-1] == f"accel test: success on {said}; this machine is ready"


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_check_that_fails_gives_its_exit_code(
    accel_program: Run, with_check: Callable[[str], dict[str, str]], count: str
) -> None:
    """S105."""
    done = accel_program("test", "-n", count, environ=with_check("raise SystemExit(3)"))
    assert done.returncode == 3
    assert "success" not in done.stdout
    assert "failed with exit code 3" in done.stderr


def test_the_check_takes_no_script(accel: Run) -> None:
    assert accel("test", "train.py").stderr == "accel: error: Got unexpected extra argument (train.py)\n"
    done = accel("test", "--module", "train.py")
    assert done.returncode == 2
    assert done.stderr == "accel: error: --module is not an option of accel test (see accel test --help)\n"
