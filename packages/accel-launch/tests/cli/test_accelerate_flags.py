"""Command lines copied from `accelerate launch`."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from accel_launch.cli.accelerate_flags import ACCELERATE_OPTIONS
from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.options import OPTIONS
from accel_launch.config.config_file import translate
from accel_state.errors import CannotRun
from launch_lines import read

Run = Callable[..., "subprocess.CompletedProcess[str]"]
OWN = {flag for option in OPTIONS for flag in (*option.opts, *option.secondary_opts)}
THEIRS = {flag for option in ACCELERATE_OPTIONS for flag in option.opts}


def flags(options: ResolvedOptions) -> dict[str, object]:
    settings = options.settings
    return {name: getattr(settings, name) for name in settings.origins if settings.is_flag(name)}


def underscored(text: str) -> str:
    """A flag and its value, with the flag as it is declared."""
    flag, _, value = text.partition(" ")
    return f"--{flag[2:].replace('-', '_')} {value}".strip()


def problem_of(tokens: list[str]) -> str:
    """Why a line is not read to its end."""
    with pytest.raises(CannotRun) as caught:
        read(tokens)
    (reason,) = caught.value.reasons
    return reason


NEUTRAL = [
    "--multi_gpu",
    "--dynamo_backend no",
    "--dynamo-backend NO",
    "-q",
    "--quiet",
    "--same_network",
    "--debug",
    "--rdzv_conf=",
    "--main_training_function main",
    "--monitor_interval 0.1",
    "--role default",
    "--no_tpu_cluster",
    "--standalone",
    "--rdzv_id none",
    "--mpirun_ccl 0",
]


@pytest.mark.parametrize("text", NEUTRAL)
def test_what_asks_for_nothing_here_is_accepted(text: str) -> None:
    line = read([*text.split(" "), "-n", "2", "s.py", "--tpu"])
    assert line.problems == ()
    assert (flags(line), line.script, line.arguments) == ({"num_processes": 2}, "s.py", ("--tpu",))


REFUSED = [
    ("--tpu", "accel launch cannot use TPUs yet"),
    ("--mpirun_hostfile hosts", "start the script with mpirun itself"),
    ("--ipex", "accel launch does not set up Intel's extension or XPUs; use the extension in the script"),
    ("--rdzv-id 100", "machines of one job find each other by the address and the port alone"),
    ("--role trainer", "all processes of a job have the same role"),
    ("--use_gpu", "accel launch uses GPUs where it finds some"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_flags_that_cannot_be_followed_are_refused_in_words(text: str, why: str) -> None:
    line = read([*text.split(" "), "-n", "0", "s.py"])
    assert line.problems[0] == f"{underscored(text)} is not supported: {why}; leave it out"
    assert line.problems[1].startswith("--num_processes: ")
    assert line.script == "s.py"


RENAMED = [
    ("--nproc_per_node 4", "--num_processes, which counts the processes of all machines together"),
    ("--nproc-per-node auto", "--num_processes, which counts the processes of all machines together"),
    ("--nnodes 2", "--num_machines"),
    ("--node-rank 1", "--machine_rank"),
    ("--master_addr h", "--main_process_ip"),
    ("--master-port 1", "--main_process_port"),
    ("--rdzv_endpoint h:1", "--main_process_ip HOST --main_process_port PORT"),
    ("--use_cpu", "--cpu"),
    ("--bf16", "--mixed_precision bf16"),
    ("--gpu 0", "--gpu_ids"),
    ("--gpus 0,1", "--gpu_ids, numbers such as 0,1; how many processes is --num_processes"),
]


@pytest.mark.parametrize(("text", "own"), RENAMED)
def test_a_flag_of_torchrun_names_the_option_that_does_it_here(text: str, own: str) -> None:
    line = read([*text.split(" "), "s.py"])
    assert line.problems == (f"{underscored(text)} is not an option of accel launch: here it is {own}",)
    assert line.script == "s.py"
    words = own.partition(",")[0].split(" ")
    assert {word for word in words if word.startswith("--")} <= OWN


def test_the_flags_for_several_machines_and_for_logs_are_accels_own() -> None:
    copied = (
        "--num_machines 2 --machine-rank 1 --main_process_ip 10.0.0.1 --main_process_port 29501 --rdzv_backend c10d"
        " --enable_cpu_affinity --log_dir logs -t 1"
    )
    line = read([*copied.split(), "s.py"])
    assert line.problems == ()
    assert flags(line) == {
        "num_machines": 2,
        "machine_rank": 1,
        "main_process_ip": "10.0.0.1",
        "main_process_port": 29501,
        "rdzv_backend": "c10d",
        "enable_cpu_affinity": True,
        "log_dir": "logs",
        "tee": "1",
    }


@pytest.mark.parametrize(
    ("tokens", "key", "value"),
    [
        (["--downcast_bf16"], "downcast_bf16", True),
    ],
)
def test_a_flag_and_the_key_of_a_config_file_are_refused_in_the_same_words(
    tokens: list[str], key: str, value: object
) -> None:
    (of_flag,) = read([*tokens, "s.py"]).problems
    (of_file,) = translate({key: value})[1]
    assert of_flag.partition(" is not supported: ")[2].removesuffix("; leave it out") == (
        of_file.partition(" is not supported: ")[2].removesuffix("; remove the line")
    )


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--deepspeed_hostfile", "DeepSpeed"),
        ("--megatron_lm_tp_degree", "Megatron-LM"),
        ("--fp8_backend", "fp8"),
    ],
)
def test_details_of_what_is_not_there_yet_are_refused_with_its_name(flag: str, words: str) -> None:
    problem = problem_of([flag, "1", "s.py"])
    assert problem.startswith(f"{flag} is not supported: accel ")
    assert words in problem
    assert "not an option" not in problem


def test_a_foreign_switch_takes_no_value() -> None:
    with pytest.raises(click.UsageError, match="'--multi_gpu' does not take a value"):
        read(["--multi_gpu=yes", "s.py"])


def test_no_flag_is_accels_and_foreign() -> None:
    assert not OWN & THEIRS


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--num_proces", "--num_processes"),
        ("--no_cpus", "--no_cpu"),
        ("--fsdp_min_num_param", "--fsdp_min_num_params"),
        ("--gpu-id", "--gpu_ids"),
        ("--quite", None),
        ("--bogus", None),
        ("--tpus", None),
        ("--num_workers", None),
    ],
)
def test_what_is_suggested_is_alike_and_would_not_be_refused(flag: str, meant: str | None) -> None:
    problem = problem_of([flag, "s.py"])
    assert problem.partition("did you mean ")[2].partition("?")[0] == (meant or "")


def test_nothing_that_is_refused_is_ever_suggested() -> None:
    for flag in sorted(THEIRS):
        problem = problem_of([f"--{flag.lstrip('-')}zz", "s.py"])
        meant = problem.partition("did you mean ")[2].partition("?")[0].split()
        assert not meant or meant[0] not in THEIRS, flag


def test_accel_env_does_not_guess_at_an_option_that_is_like_none(accel_program: Run) -> None:
    done = accel_program("env", "--bogus")
    assert done.returncode == 2
    assert "--bogus is not an option" in done.stderr
    assert "did you mean" not in done.stderr


def test_a_copied_command_line_runs_and_the_help_has_one_sentence_of_it(
    accel: Run, accel_program: Run, tmp_path: Path
) -> None:
    (tmp_path / "s.py").write_text("import sys; print(*sys.argv[1:])")
    copied = (
        "launch --multi_gpu --num_machines 1 --machine_rank 0 --dynamo_backend no --num_processes 2 --cpu s.py --tpu"
    )
    done = accel_program(*copied.split())
    assert (done.returncode, done.stdout, done.stderr) == (0, "--tpu\n--tpu\n", "")
    words = " ".join(accel("launch", "--help").stdout.split())
    assert "Options of accelerate launch that ask for nothing else, such as --multi_gpu" in words
    assert "--same_network" not in words
