"""`accel completion`: the scripts, in the shells they are for."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from accel_launch.cli import COMMANDS
from accel_launch.options import OPTIONS

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Complete = Callable[..., list[str]]

SHELLS = ("bash", "zsh", "fish")
ASK_BASH = """\
eval "$(cat completion.bash)"
COMP_WORDS=({words}); COMP_CWORD={at}
_accel
[ "${{#COMPREPLY[@]}}" -eq 0 ] || printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# What zsh's own system would show, printed.
ASK_ZSH = """\
compdef() {{ :; }}
compadd() {{ shift; print -l -- "$@"; }}
_files() {{ [[ "$1" == -/ ]] && print -l -- *(/) || print -l -- *; }}
_describe() {{
    local one
    for one in "${{(@P)@[-1]}}"; do [[ "$one" == "${{words[CURRENT]}}"* ]] && print -- "${{one%%:*}}"; done
}}
compset() {{ :; }}
eval "$(cat completion.zsh)"
words=({words}); CURRENT={at}
_accel
"""


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(params=SHELLS)
def complete(request: pytest.FixtureRequest, accel: Run, silent_environ: Mapping[str, str], tmp_path: Path) -> Complete:
    """What one shell offers after some words, the last of which is being written."""
    name = request.param
    program = shell(name)
    (tmp_path / f"completion.{name}").write_text(accel("completion", name).stdout)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "my data").mkdir()

    def ask(*words: str) -> list[str]:
        listed = shlex.join(["accel", *words])
        if name == "bash":
            command = [program, "--norc", "-c", ASK_BASH.format(words=listed, at=len(words))]
        elif name == "zsh":
            command = [program, "-f", "-c", ASK_ZSH.format(words=listed, at=len(words) + 1)]
        else:
            code = f"source completion.fish; complete -C {shlex.quote(' '.join(['accel', *words]))}"
            command = [program, "--no-config", "-c", code]
        done = subprocess.run(
            command, cwd=tmp_path, env=dict(silent_environ), capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        found = [line.split("\t")[0] for line in done.stdout.splitlines()]
        return (
            [line.rstrip("/") for line in found if line.startswith(words[-1])]
            if name == "zsh"
            else [line.rstrip("/").replace("\\ ", " ") for line in found]
        )

    return ask


def test_commands_are_offered(complete: Complete) -> None:
    assert set(COMMANDS) <= set(complete(""))
    assert complete("ver") == ["verify"]


@pytest.mark.parametrize("command", ["launch", "test", "env"])
def test_every_option_of_the_table_is_offered(complete: Complete, command: str) -> None:
    flags = {flag for option in OPTIONS for flag in option.flags if flag.startswith("--")}
    flags -= {"--module", "--no_python"} if command != "launch" else set()
    assert flags <= set(complete(command, "--"))
    assert ("--module" in complete(command, "--")) == (command == "launch")


def test_the_choices_of_an_option_are_offered(complete: Complete) -> None:
    assert set(complete("launch", "--mixed_precision", "")) == {"no", "bf16", "fp16", "fp8"}
    assert complete("launch", "--cpu", "--submit", "k") == ["kubernetes"]
    assert "train.py" not in complete("launch", "--num_processes", "")


def test_the_values_of_an_estimate_are_offered(complete: Complete) -> None:
    command = pytest.importorskip("accel_big.command", reason="package accel-big brings it", exc_type=ImportError)
    assert set(complete("estimate-memory", "x", "--optimizer", "")) == set(command.FLAGS["--optimizer"])
    assert set(complete("estimate-memory", "x", "--dtypes", "")) == set(command.FLAGS["--dtypes"])
    assert set(complete("estimate-memory", "x", "--dtypes", "in")) == {"int8", "int4"}


def test_what_one_command_of_config_takes_is_offered_after_that_only(complete: Complete) -> None:
    offered = {word: set(complete("config", word, "--")) & {"--overwrite", "--origin"} for word in ("default", "show")}
    assert offered == {"default": {"--overwrite"}, "show": {"--origin"}}
    assert not {"--overwrite", "--origin"} & set(complete("config", "update", "--"))
    assert not {"--overwrite", "--origin"} & set(complete("config", "--"))
    assert complete("config", "default", "--cpu", "--over") == ["--overwrite"]


def test_files_are_offered_for_the_script_and_folders_for_logs(complete: Complete) -> None:
    assert "train.py" in complete("launch", "-n", "2", "")
    assert "train.py" in complete("launch", "--cpu", "--config_file", "")
    assert complete("launch", "--log_dir", "") == ["my data"]


def test_after_the_script_there_are_files_and_no_options(complete: Complete) -> None:
    assert "--cpu" not in complete("launch", "-n", "2", "train.py", "--")
    assert "train.py" in complete("launch", "train.py", "")
    # A value is no script.
    assert "--cpu" in complete("launch", "--mixed_precision", "no", "--c")


def test_the_words_of_a_command_are_offered_once(complete: Complete) -> None:
    assert set(complete("checkpoint", "")) >= {"ls", "verify", "diff"}
    assert set(complete("completion", "")) >= set(SHELLS)
    assert "ls" not in complete("checkpoint", "verify", "")


def test_bash_completes_behind_an_equals_sign_and_with_dashes(
    accel: Run, tmp_path: Path, silent_environ: Mapping[str, str]
) -> None:
    program = shell("bash")
    (tmp_path / "completion.bash").write_text(accel("completion", "bash").stdout)

    def ask(*words: str) -> list[str]:
        code = ASK_BASH.format(words=shlex.join(["accel", *words]), at=len(words))
        command = [program, "--norc", "-c", code]
        done = subprocess.run(
            command, cwd=tmp_path, env=dict(silent_environ), capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    # bash makes three words of --name=value.
    assert ask("launch", "--submit", "=") == ["slurm", "sagemaker", "kubernetes"]
    assert ask("launch", "--mixed-precision", "=", "b") == ["bf16"]
    assert "--cpu" in ask("launch", "--mixed_precision", "=", "no", "--c")
    assert ask("launch", "--num-p") == ["--num-processes"]


@pytest.mark.parametrize("name", SHELLS)
def test_the_script_is_one_for_its_shell(accel: Run, tmp_path: Path, name: str) -> None:
    done = accel("completion", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r"@[A-Z]+@", done.stdout)
    (tmp_path / "script").write_text(done.stdout)
    subprocess.run([shell(name), "-n", tmp_path / "script"], check=True)


def test_it_can_be_evaluated_as_the_help_says(accel: Run, tmp_path: Path) -> None:
    program = shell("bash")
    (tmp_path / "completion.bash").write_text(accel("completion", "bash").stdout)
    code = 'eval "$(cat completion.bash)"; complete -p accel'
    done = subprocess.run([program, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "complete -F _accel accel\n"


def test_the_help_says_where_the_line_goes(accel: Run) -> None:
    done = accel("completion", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("~/.bashrc", "~/.zshrc", "~/.config/fish/config.fish", 'eval "$(accel completion bash)"'):
        assert words in done.stdout
    assert accel("completion").returncode == 1


def test_another_shell_is_refused_with_the_nearest(accel: Run) -> None:
    done = accel("completion", "bsh")
    assert done.returncode == 2
    assert done.stderr == "accel: error: expected one of bash, zsh, fish, found 'bsh'; did you mean 'bash'?\n"
    assert accel("completion", "bash", "zsh").returncode == 2
