"""Write jobs for SLURM: a batch file that starts `accel launch` on each machine, and requeues itself after a stop.

Source:
    https://slurm.schedmd.com/sbatch.html and https://slurm.schedmd.com/job_array.html
"""

import re
import shlex
from typing import ClassVar, final

from accel_launch.cli.option_types import COUNT
from accel_state.exit_codes import STOPPED
from click.core import ParameterSource

from accel_submit.scheduler import Scheduler, SubmitRequest, Types, matching, render

#: seconds before the end of a job at which SLURM signals it: enough for a step and a save; the grace of accel launch
NOTICE_S, GRACE_S = 90, 30
_NAME = re.compile(r"[a-z][a-z0-9]+(-[a-z0-9]+)*")

# Since SLURM 22.05 srun takes the number of cores from its own options only. The machines of a job that has saved end
# one after the other: the first must not have the rest killed.
TEMPLATE = """\
#!/bin/bash
# $marker; it replaces any file that has this line
$directives

unset $variables
# A signal to all of the job must not end this shell before the processes have saved.
trap : TERM USR1
srun --kill-on-bad-exit=0 ${cores}accel launch $words
code=$$?
$requeue
exit "$$code"
"""
REQUEUE = """\
# If it was asked to stop, and has saved: the same job goes on where it was. A job that is told of its end as soon as it
# has begun would do so for ever. One task of an array has the number of the array, by which all its tasks would go.
if [ "$code" -eq %d ] && [ "$SECONDS" -ge %d ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
fi"""
_ONE = "1, as accel launch runs once on each machine and starts the processes there; say how many with --num_processes"


@final
class SlurmScheduler(Scheduler):
    """A scheduler that writes a file for sbatch."""

    name = "slurm"
    default_file = "accel.sbatch"
    client = ("sbatch",)
    types: ClassVar[Types] = {
        "nodes": COUNT,
        **dict.fromkeys(("ntasks-per-node", "tasks-per-node"), matching("1", _ONE)),
        "ntasks": matching("(?!)", "nothing, as there is one task on each machine"),
        "signal": matching(r"(?i)(?!r?b:)[^@]+(@\d+)?", "a signal for accel launch, such as TERM@60, and no B:"),
    }
    takes_others = True
    machines_option = "nodes"
    gpus_options = ("gpus-per-node", "gpus", "gres", "gpus-per-task", "tres-per-node", "tres-per-task")
    ignores: ClassVar = {
        "machine_rank": "each machine learns it from SLURM",
        "main_process_ip": "each machine learns it from SLURM",
        "gpu_ids": "SLURM gives the job its GPUs, numbered from 0; ask for a number of them",
    }

    def write_job(self, request: SubmitRequest) -> str:
        """Return the batch file, with the directives that the settings need or the submit options give."""
        settings, options, grace = request.settings, request.options, request.settings.grace_period or GRACE_S
        gpus = None if settings.cpu or options.keys() & {*self.gpus_options} else request.processes_per_machine
        directives = {
            "job-name": request.name,
            "nodes": request.machines,
            "ntasks-per-node": "1",
            "gpus-per-node": gpus,
            "cpus-per-task": request.cores,
            "output": "%x-%j.out",
            "open-mode": "append",  # a job that is queued again appends to its output
            "signal": f"SIGUSR1@{max(NOTICE_S, grace + 60)}",
            "requeue": None if "no-requeue" in options else "",
        }
        _check(request)
        said = {name: str(value) for name, value in {**directives, **options}.items() if value is not None}
        notice = int((re.search(r"@(\d+)$", said["signal"]) or ("", 60))[1])  # sbatch's own time is 60 s
        if notice <= grace:
            request.problems.append(f"signal={said['signal']}: of its {notice} s --grace_period {grace} leaves none")
        lines = [f"--{name}={shlex.quote(value)}" if value else f"--{name}" for name, value in said.items()]
        variables = [name for name in request.ignored if settings.origin(name) is ParameterSource.ENVIRONMENT]
        values = {
            "marker": self.marker,
            "directives": "\n".join(f"#SBATCH {line}" for line in lines),
            "variables": " ".join(f"ACCEL_{name.upper()}" for name in variables) or None,
            "cores": '--cpus-per-task="$SLURM_CPUS_PER_TASK" ' if "cpus-per-task" in said else "",
            "words": shlex.join(request.words()),
            "requeue": REQUEUE % (STOPPED, max(NOTICE_S, notice)) if "requeue" in said else None,
        }
        return render(TEMPLATE, values)


def _check(request: SubmitRequest) -> None:
    """Add to the problems what sbatch could not read, or what contradicts how accel launch works."""
    options, problems = request.options, request.problems
    wrong = [name for name in options if not _NAME.fullmatch(name)]
    problems += [f"submit option {name!r} is not an option of sbatch: expected one such as partition" for name in wrong]
    lines = [name for name, value in options.items() if not str(value).isprintable()]
    problems += [f"submit option {name}={options[name]!r}: a value of sbatch is one line" for name in lines]
    if "requeue" in options and "no-requeue" in options:
        problems.append("submit options requeue and no-requeue contradict each other: give one of the two")
