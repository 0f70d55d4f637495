"""SLURM: a batch file that starts `accel launch` once on each machine, and queues itself again after a stop.

Source: the manual pages of sbatch and srun, https://slurm.schedmd.com/sbatch.html.
"""

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import final

from accel_state.exits import STOPPED

from accel_launch.script_check import script_problem
from accel_launch.settings import Origin
from accel_launch.submission.queue import (
    PLACE,
    Plan,
    Queue,
    Request,
    chosen_gpus,
    launch_words,
    left_out,
    run_client,
    whole_number,
)
from accel_launch.submission.slurm_time import EXPECTED, notice_within, seconds_of

#: seconds before the end of a job at which it is told of it: enough to finish a step and to save
NOTICE_S = 90
GPUS = ("gpus-per-node", "gpus", "gres", "gpus-per-task", "tres-per-node", "tres-per-task")
_NAME = re.compile(r"[a-z][a-z0-9]+(-[a-z0-9]+)*")


@final
class Slurm(Queue):
    """Writes a file for sbatch."""

    default_file = "accel.sbatch"
    marker = "# written by accel launch --submit slurm"
    machines_option = "nodes"

    def plan(self, request: Request) -> Plan:
        """The batch file: our directives, where the submit options do not say otherwise, and the step."""
        settings = request.settings
        options = {name.replace("_", "-"): value for name, value in request.options.items()}
        place = left_out(settings, PLACE, "each machine learns it from SLURM")
        gpus = chosen_gpus(settings, "SLURM")
        problems = [*place.problems, *gpus.problems, *_wrong(options), *_contradictions(request, options)]
        wrong = script_problem(
            request.script,
            module=settings.module,
            no_python=settings.no_python,
            cwd=request.cwd,
            environ=request.environ,
        )
        problems += [wrong] if wrong is not None else []
        wanted_s = max(NOTICE_S, (settings.grace_period or 0) + 60)
        notice_s = notice_within(options.get("time"), wanted_s)
        notes = [*place.notes, *gpus.notes]
        if notice_s < wanted_s and "signal" not in options:
            notes.append(
                f"the job is told of its end {notice_s} s before it, and not {wanted_s} s: time={options['time']} is"
                " short"
            )
        directives = {**_ours(request, options, problems, notice_s), **options}
        dropped = [*place.names, *gpus.names]
        text = "\n".join(
            [
                "#!/bin/bash",
                f"{self.marker}; it replaces any file that has this line",
                *(f"#SBATCH {_directive(name, value)}" for name, value in directives.items()),
                "",
                *_step(request, directives, dropped),
                "",
            ]
        )
        return Plan(text, tuple(problems), tuple(notes))

    def missing(self, environ: Mapping[str, str]) -> str | None:
        """sbatch, unless it is in PATH."""
        return None if shutil.which("sbatch", path=environ.get("PATH")) else "there is no sbatch in PATH"

    def command(self, path: str) -> str:
        """sbatch with the file."""
        return shlex.join(["sbatch", path])

    def hand_over(self, path: Path, environ: Mapping[str, str]) -> str:
        """Submits the file with sbatch, and tells the number of the job.

        Raises: CannotRun with the words of sbatch if it refuses.
        """
        number, _, cluster = run_client(["sbatch", "--parsable", str(path)], environ, cwd=Path.cwd()).partition(";")
        return f"submitted as job {number}" + (f" of cluster {cluster}" if cluster else "")


def _ours(request: Request, options: Mapping[str, str], problems: list[str], notice_s: int) -> dict[str, str]:
    """The directives that follow from the settings."""
    settings, each = request.settings, request.processes_per_machine()
    ours = {"job-name": request.name, "nodes": str(request.machines), "ntasks-per-node": "1"}
    if not settings.cpu and not any(name in options for name in GPUS):
        if each is None:
            problems.append(
                "how many GPUs is not said: give --num_processes, which counts those of all machines, or"
                " --submit_options gpus-per-node=N, or --cpu"
            )
        ours["gpus-per-node"] = str(each)
    threads = settings.num_cpu_threads_per_process
    if threads is not None or settings.cpu:
        ours["cpus-per-task"] = str((each or 1) * (threads or 1))
    # A job that is queued again goes on in the file of its output.
    ours |= {"output": "%x-%j.out", "open-mode": "append", "signal": f"SIGUSR1@{notice_s}", "requeue": ""}
    if "no-requeue" in options:
        del ours["requeue"]
    return ours


def _step(request: Request, directives: Mapping[str, str], dropped: list[str]) -> list[str]:
    """The commands of the batch file."""
    variables = [f"ACCEL_{name.upper()}" for name in dropped if request.settings.origins[name] is Origin.ENVIRONMENT]
    # Since SLURM 22.05 srun takes this number from its own options only.
    cores = ['--cpus-per-task="$SLURM_CPUS_PER_TASK"'] if "cpus-per-task" in directives else []
    step = " ".join(
        [
            # The machines of a job that has saved end one after the other: the first must not have the rest killed.
            "srun --kill-on-bad-exit=0",
            *cores,
            "accel launch",
            shlex.join(launch_words(request, without=dropped)),
        ]
    )
    again = [
        f'if [ "$code" -eq {STOPPED} ]; then',
        "    # It was asked to stop, and has saved: the same job goes on where it was.",
        '    scontrol requeue "$SLURM_JOB_ID"',
        "fi",
    ]
    return [
        *([f"unset {' '.join(variables)}"] if variables else []),
        "# A signal to all of the job must not end this shell before the processes have saved.",
        "trap : TERM USR1",
        step,
        "code=$?",
        *(again if "requeue" in directives else []),
        'exit "$code"',
    ]


def _directive(name: str, value: str) -> str:
    return f"--{name}={shlex.quote(value)}" if value else f"--{name}"


def _wrong(options: Mapping[str, str]) -> list[str]:
    """The options that sbatch could not read from a line."""
    problems = []
    for name, value in options.items():
        if len(name) == 1:
            problems.append(f"submit option {name!r}: write the long name that sbatch has for it, such as partition=")
        elif not _NAME.fullmatch(name):
            problems.append(f"submit option {name!r} is no option of sbatch: expected a name such as partition")
        elif not value.isprintable():
            problems.append(f"submit option {name}={value!r}: a value of sbatch is one line")
        elif name in ("time", "time-min") and seconds_of(value) is None:
            problems.append(f"submit option {name}={value}: expected {EXPECTED}")
    return problems


def _contradictions(request: Request, options: Mapping[str, str]) -> list[str]:
    """The options that do not go together with the settings, or with how accel launch works."""
    settings, problems = request.settings, request.uneven()
    each = request.processes_per_machine()
    for name in ("ntasks-per-node", "tasks-per-node"):
        if options.get(name, "1") != "1":
            problems.append(
                f"submit option {name}={options[name]}: accel launch runs once on each machine and starts the"
                " processes there; say how many with --num_processes"
            )
    if "ntasks" in options and options["ntasks"] != str(request.machines):
        problems.append(f"submit option ntasks={options['ntasks']}: there is one task on each machine; leave it out")
    if "gpus-per-node" in options and options["gpus-per-node"].isdigit() and not settings.cpu:
        gpus = whole_number(options, "gpus-per-node", problems, least=0)
        if gpus is not None and each is not None and gpus < each:
            problems.append(
                f"submit option gpus-per-node={gpus}: --num_processes {settings.num_processes} puts {each} processes on"
                " each machine, and each of them needs a GPU"
            )
    if options.get("signal", "").upper().startswith("B:"):
        problems.append(
            f"submit option signal={options['signal']}: with B: only the batch shell has it; write"
            f" signal={options['signal'][2:]}, which reaches accel launch"
        )
    if "requeue" in options and "no-requeue" in options:
        problems.append("submit options requeue and no-requeue contradict each other: give one of the two")
    return problems
