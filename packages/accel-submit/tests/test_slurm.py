"""`accel launch --submit slurm`: the batch file, who gets it, and what is refused."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Programs = Callable[..., dict[str, str]]

FILE = "accel.sbatch"
SLURM = ("launch", "--submit", "slurm")


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("")
    return "train.py"


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """Makes a folder of small shell programs the only one in PATH, and gives that PATH."""

    def make(**texts: str) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        return {"PATH": str(folder)}

    return make


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def step(text: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith("srun "))
    return shlex.split(line)


def test_the_file_asks_for_what_the_settings_need(accel: Run, script: str, programs: Programs, tmp_path: Path) -> None:
    done = accel(*SLURM, "-n", "16", "--num_machines", "2", script, "--lr", "a b", environ=programs())
    assert done.returncode == 0, done.stderr
    assert "there is no sbatch in PATH" in done.stderr
    assert "sbatch accel.sbatch" in done.stderr
    text = (tmp_path / FILE).read_text()
    assert directives(text) == [
        "--job-name=train",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--output=%x-%j.out",
        "--open-mode=append",
        "--signal=SIGUSR1@90",
        "--requeue",
    ]
    words = ["--config_file", "/dev/null", "--num_processes", "16", "--num_machines", "2", "train.py", "--lr"]
    assert step(text) == ["srun", "--kill-on-bad-exit=0", "accel", "launch", *words, "a b"]
    subprocess.run(["bash", "-n", tmp_path / FILE], check=True)


def test_the_processes_of_a_machine_have_their_cores(
    accel: Run, script: str, programs: Programs, tmp_path: Path
) -> None:
    options = ("-n", "4", "--cpu", "--num_cpu_threads_per_process", "3", "--num_machines", "2", "--grace_period", "100")
    assert accel(*SLURM, *options, script, environ=programs()).returncode == 0
    text = (tmp_path / FILE).read_text()
    assert "--cpus-per-task=6" in directives(text)
    assert "--signal=SIGUSR1@160" in directives(text)
    assert "gpus" not in text
    assert step(text)[2] == "--cpus-per-task=$SLURM_CPUS_PER_TASK"


def test_submit_options_win_and_are_quoted(accel: Run, script: str, programs: Programs, tmp_path: Path) -> None:
    options = (
        "partition=gpu,time=02:00:00,gpus_per_node=4,nodes=3,comment=it's #1 $(id),exclusive=,no-requeue=,output=o"
    )
    assert accel(*SLURM, "--submit_options", options, script, environ=programs()).returncode == 0
    text = (tmp_path / FILE).read_text()
    found = directives(text)
    for line in ("--partition=gpu", "--time=02:00:00", "--gpus-per-node=4", "--nodes=3", "--exclusive", "--output=o"):
        assert found.count(line) == 1
    comment = next(line for line in found if line.startswith("--comment"))
    assert shlex.split(comment) == ["--comment=it's #1 $(id)"]
    assert "--requeue" not in found
    assert "scontrol" not in text
    # The step has three nodes, and the launcher on each of them must know that it is not alone.
    assert step(text)[4:] == ["--config_file", "/dev/null", "--num_machines", "3", "train.py"]


def test_everything_that_was_said_anywhere_becomes_a_flag(
    accel: Run, script: str, programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("mixed_precision: bf16\nuse_cpu: false\nmachine_rank: 1\ngpu_ids: all\n")
    environ = {**programs(), "ACCEL_MAX_RESTARTS": "2", "ACCEL_MAIN_PROCESS_IP": "login"}
    options = ("-n", "2", "--config_file", "c.yaml", "--explain", "-m")
    done = accel(*SLURM, *options, "train", environ=environ)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / FILE).read_text()
    flags = ["--num_processes", "2", "--no_cpu", "--mixed_precision", "bf16"]
    flags += ["--max_restarts", "2", "--explain", "--module"]
    assert step(text)[4:] == ["--config_file", "/dev/null", *flags, "train"]
    assert "--machine_rank 1, which the config file says, is left out" in done.stderr
    assert "--main_process_ip login, which the environment says, is left out" in done.stderr
    assert "unset ACCEL_MAIN_PROCESS_IP\n" in text


def test_sbatch_gets_the_file_and_the_job_number_is_said(
    accel_program: Run, script: str, programs: Programs, tmp_path: Path
) -> None:
    path = programs(sbatch='for last; do :; done; /bin/cp "$last" seen; echo "4242;big"')
    done = accel_program(*SLURM, "-n", "1", script, environ=path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text() == (tmp_path / FILE).read_text()
    assert done.stdout == "4242;big\n"


def test_a_refusal_of_sbatch_is_told(accel: Run, script: str, programs: Programs) -> None:
    path = programs(sbatch="echo 'sbatch: error: invalid partition' >&2; exit 1")
    done = accel(*SLURM, "-n", "1", script, environ=path)
    assert done.returncode == 2
    assert done.stderr.endswith(
        "sbatch: error: invalid partition\naccel: error: sbatch accel.sbatch failed with exit code 1;"
        " its own message is above\n"
    )


def test_a_dry_run_prints_the_job_and_submits_nothing(
    accel: Run, script: str, programs: Programs, tmp_path: Path
) -> None:
    done = accel(*SLURM, "-n", "1", "--dry_run", script, environ=programs(sbatch="echo 1 > called"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / FILE).read_text()
    assert not (tmp_path / "called").exists()
    assert "--dry_run" not in done.stdout


@pytest.mark.parametrize(
    ("code", "seconds", "asked"), [(75, "100", ["requeue 7"]), (75, "0", []), (0, "100", []), (3, "100", [])]
)
def test_a_job_that_has_saved_queues_itself_again(
    accel: Run, script: str, programs: Programs, tmp_path: Path, code: int, seconds: str, asked: list[str]
) -> None:
    """But not for ever if it is told of its end as soon as it has begun."""
    path = programs(srun=f"exit {code}", scontrol='echo "$@" >> asked')
    assert accel(*SLURM, "-n", "1", script, environ=path).returncode == 0
    # bash counts from the SECONDS of its environment on
    environ = {**path, "SLURM_JOB_ID": "7", "SECONDS": seconds}
    done = subprocess.run(["/bin/bash", FILE], cwd=tmp_path, env=environ, check=False, capture_output=True)
    assert done.returncode == code
    said = tmp_path / "asked"
    assert (said.read_text().splitlines() if said.exists() else []) == asked


def test_a_task_of_an_array_queues_only_itself_again(
    accel: Run, script: str, programs: Programs, tmp_path: Path
) -> None:
    """By the name of the task: the last one has the number of the array, which stands for all tasks."""
    path = programs(srun="exit 75", scontrol='echo "$@" >> asked')
    assert accel(*SLURM, "-n", "1", "--submit_options", "array=0-3", script, environ=path).returncode == 0
    array = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    subprocess.run(["/bin/bash", FILE], cwd=tmp_path, env={**path, **array, "SECONDS": "100"}, check=False)
    assert (tmp_path / "asked").read_text() == "requeue 7_3\n"


@pytest.mark.parametrize(
    ("signal", "grace", "told"),
    [
        ("TERM@60", ["--grace_period", "60"], "signal=TERM@60: of its 60 s --grace_period 60 leaves none"),
        ("TERM", ["--grace_period", "61"], "of its 60 s --grace_period 61 leaves none"),
        ("TERM@5", [], "of its 5 s --grace_period 30 leaves none"),
        ("TERM@2:00", [], "expected a signal for accel launch, such as TERM@60"),
    ],
)
def test_a_signal_that_leaves_no_time_to_save_is_refused(
    accel: Run, script: str, programs: Programs, tmp_path: Path, signal: str, grace: list[str], told: str
) -> None:
    options = ("-n", "1", *grace, "--submit_options", f"signal={signal}")
    done = accel(*SLURM, *options, script, environ=programs())
    assert done.returncode == 2
    assert told in done.stderr
    assert not (tmp_path / FILE).exists()


def test_a_job_told_early_is_queued_again_only_if_it_has_run_longer(
    accel: Run, script: str, programs: Programs, tmp_path: Path
) -> None:
    options = ("-n", "1", "--submit_options", "signal=TERM@300")
    assert accel(*SLURM, *options, script, environ=programs(srun="", scontrol="")).returncode == 0
    assert '[ "$SECONDS" -ge 300 ]' in (tmp_path / FILE).read_text()


def test_the_shell_outlives_a_signal_to_all_of_the_job(
    accel: Run, script: str, programs: Programs, tmp_path: Path
) -> None:
    # srun stands for a job that the signal reaches as well, and that ends with 75 once it has saved.
    path = programs(srun="kill -TERM $PPID; exit 75", scontrol='echo "$@" >> asked')
    assert accel(*SLURM, "-n", "1", script, environ=path).returncode == 0
    subprocess.run(["/bin/bash", FILE], cwd=tmp_path, env={**path, "SLURM_JOB_ID": "7", "SECONDS": "100"}, check=False)
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def test_the_step_starts_the_script_with_its_settings(
    accel: Run, programs: Programs, tmp_path: Path, silent_environ: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text("import os, sys; print(os.environ['ACCEL_MIXED_PRECISION'], sys.argv[1:])")
    found = "import sys; from accel_launch.cli import main; sys.exit(main())"
    run = f'exec {shlex.quote(sys.executable)} -c {shlex.quote(found)} "$@"'
    path = programs(srun='while [ "$1" != accel ]; do shift; done; exec "$@"', accel=run)
    options = ("-n", "1", "--cpu", "--mixed_precision", "bf16")
    assert accel(*SLURM, *options, "train.py", "$HOME it's", environ=path).returncode == 0
    environ = {**silent_environ, **path, "SLURM_CPUS_PER_TASK": "1"}
    done = subprocess.run(["/bin/bash", FILE], cwd=tmp_path, env=environ, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, 'bf16 ["$HOME it\'s"]\n'), done.stderr


def test_all_that_is_wrong_is_told_at_once_and_nothing_is_written(
    accel: Run, programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("nonsense: 1\n")
    options = "p=gpu,nodes=3,ntasks-per-node=8,signal=B:TERM@30,requeue=,no-requeue=,ntasks=9,Bad!=1"
    line = ("-n", "3", "--num_machines", "2", "--machine_rank", "1", "--gpu_ids", "2,3", "--config_file", "c.yaml")
    done = accel(*SLURM, *line, "--submit_options", options, "--submit_file", "no/x", "gone.py", environ=programs())
    assert (done.returncode, done.stdout) == (2, "")
    for words in (
        "unknown key 'nonsense'",
        "nodes=3 contradicts --num_machines 2",
        "--machine_rank 1: each machine learns it from SLURM",
        "--gpu_ids 2,3: SLURM gives the job its GPUs",
        "'p' is not an option of sbatch",
        "'Bad!' is not an option of sbatch",
        "--num_processes 3 on 2 machines",
        "ask for 4",
        "ntasks-per-node=8",
        "ntasks=9",
        "signal=B:TERM@30: expected a signal for accel launch, such as TERM@60, and no B:",
        "requeue and no-requeue contradict",
        "script 'gone.py' does not exist",
    ):
        assert words in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("c.yaml", "bin")] == []


def test_the_number_of_gpus_has_to_be_said(accel: Run, script: str, programs: Programs) -> None:
    assert "how many GPUs is not said" in accel(*SLURM, script, environ=programs()).stderr
    assert accel(*SLURM, "--submit_options", "gres=gpu:4", script, environ=programs()).returncode == 0
    few = accel(*SLURM, "-n", "8", "--submit_options", "gpus-per-node=4", script, environ=programs())
    assert "gpus-per-node=4: --num_processes 8 puts 8 processes on each machine" in few.stderr


@pytest.mark.parametrize("options", ["nodes=2-4", "nodes=0"])
def test_a_number_of_nodes_is_one_number(accel: Run, script: str, programs: Programs, options: str) -> None:
    done = accel(*SLURM, "--cpu", "--submit_options", options, script, environ=programs())
    assert f"submit option {options}: expected a whole number of at least 1" in done.stderr


def test_options_of_two_flags_are_both_in_the_file(accel: Run, script: str, programs: Programs, tmp_path: Path) -> None:
    options = ("--submit_options", "partition=a,time=10", "--submit_options", "partition=b")
    assert accel(*SLURM, "--cpu", *options, script, environ=programs()).returncode == 0
    found = directives((tmp_path / FILE).read_text())
    assert ("--time=10" in found, [one for one in found if "partition" in one]) == (True, ["--partition=b"])


def test_a_line_break_cannot_leave_its_directive(accel: Run, script: str, programs: Programs, tmp_path: Path) -> None:
    done = accel(*SLURM, "--cpu", "--submit_options", "comment=a\nrm -rf x", script, environ=programs())
    assert done.returncode == 2
    assert "a value of sbatch is one line" in done.stderr
    assert not (tmp_path / FILE).exists()


def test_only_a_file_of_ours_is_replaced(accel: Run, script: str, programs: Programs, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("#!/bin/bash\n#SBATCH --mine\n")
    done = accel(*SLURM, "--cpu", script, environ=programs())
    assert done.returncode == 2
    assert "is there already, and accel launch has not written it" in done.stderr
    assert (tmp_path / FILE).read_text() == "#!/bin/bash\n#SBATCH --mine\n"
    for count in ("1", "2"):
        done = accel(*SLURM, "--cpu", "-n", count, "--submit_file", "own", script, environ=programs())
        assert done.returncode == 0, done.stderr
        assert f"--num_processes {count} " in (tmp_path / "own").read_text()
    assert "'bin' is a directory" in accel(*SLURM, "--cpu", "--submit_file", "bin", script, environ=programs()).stderr


def test_after_an_unknown_option_only_that_is_told(accel: Run, script: str, programs: Programs) -> None:
    done = accel(*SLURM, "--nonsense", script, environ=programs())
    assert done.returncode == 2
    assert done.stderr.startswith("accel: error: --nonsense is not an option of accel launch")
