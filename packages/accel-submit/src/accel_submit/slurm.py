"""SLURM: a batch file that starts `accel launch` once on each machine, and queues itself again after a stop.

Source: the manual pages of sbatch and srun, https://slurm.schedmd.com/sbatch.html.
"""

import re
import shlex
from typing import ClassVar, final

from accel_state.exit_codes import STOPPED
from click.core import ParameterSource

from accel_submit.scheduler import JobFile, ProgramScheduler, SubmitRequest, render
from accel_submit.slurm_time import EXPECTED, notice_within, seconds_of

#: seconds before the end of a job at which it is told of it: enough to finish a step and to save
NOTICE_S = 90
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
REQUEUE = f"""\
if [ "$code" -eq {STOPPED} ]; then
    # It was asked to stop, and has saved: the same job goes on where it was.
    scontrol requeue "$SLURM_JOB_ID"
fi"""


@final
class SlurmScheduler(ProgramScheduler):
    """Writes a file for sbatch."""

    name = "slurm"
    default_file = "accel.sbatch"
    client = ("sbatch",)
    quietly = ("--parsable",)
    machines_option = "nodes"
    gpus_options = ("gpus-per-node", "gpus", "gres", "gpus-per-task", "tres-per-node", "tres-per-task")
    ignores: ClassVar = {
        "machine_rank": "each machine learns it from SLURM",
        "main_process_ip": "each machine learns it from SLURM",
        "gpu_ids": "SLURM gives the job its GPUs, numbered from 0; ask for a number of them",
    }
    dashes = True

    def write_job(self, request: SubmitRequest) -> JobFile:
        """The batch file: the directives that the settings need, unless the submit options say otherwise."""
        settings, options, notes = request.settings, request.options, []
        wanted_s = max(NOTICE_S, (settings.grace_period or 0) + 60)
        notice_s = notice_within(options.get("time"), wanted_s)
        if notice_s < wanted_s and "signal" not in options:
            short = f"{notice_s} s before it, and not {wanted_s} s: time={options['time']} is short"
            notes = [f"the job is told of its end {short}"]
        gpus = None if settings.cpu or options.keys() & {*self.gpus_options} else str(request.processes_per_machine)
        directives = {
            "job-name": request.name,
            "nodes": str(request.machines),
            "ntasks-per-node": "1",
            "gpus-per-node": gpus,
            "cpus-per-task": request.cores,
            # A job that is queued again goes on in the file of its output.
            "output": "%x-%j.out",
            "open-mode": "append",
            "signal": f"SIGUSR1@{notice_s}",
            "requeue": None if "no-requeue" in options else "",
        }
        said = {name: value for name, value in {**directives, **options}.items() if value is not None}
        variables = [name for name in request.ignored if settings.origin(name) is ParameterSource.ENVIRONMENT]
        values = {
            "marker": self.marker,
            "directives": "\n".join(f"#SBATCH {_directive(name, value)}" for name, value in said.items()),
            "variables": " ".join(f"ACCEL_{name.upper()}" for name in variables) or None,
            "cores": '--cpus-per-task="$SLURM_CPUS_PER_TASK" ' if "cpus-per-task" in said else "",
            "words": shlex.join(request.words()),
            "requeue": REQUEUE if "requeue" in said else None,
        }
        return JobFile(render(TEMPLATE, values), _problems(request), notes)

    def describe(self, printed: str) -> str:
        """The number of the job, and its cluster if there are several."""
        number, _, cluster = printed.partition(";")
        return f"job {number}" + (f" of cluster {cluster}" if cluster else "")


def _directive(name: str, value: str) -> str:
    return f"--{name}={shlex.quote(value)}" if value else f"--{name}"


def _problems(request: SubmitRequest) -> list[str]:
    """Submit options that sbatch could not read, or that contradict how accel launch works."""
    options, problems = request.options, []
    for name, value in options.items():
        if len(name) == 1:
            problems.append(f"submit option {name!r}: write the long name that sbatch has for it, such as partition=")
        elif not _NAME.fullmatch(name):
            problems.append(f"submit option {name!r} is no option of sbatch: expected a name such as partition")
        elif not value.isprintable():
            problems.append(f"submit option {name}={value!r}: a value of sbatch is one line")
        elif name in ("time", "time-min") and seconds_of(value) is None:
            problems.append(f"submit option {name}={value}: expected {EXPECTED}")
        elif name in ("ntasks-per-node", "tasks-per-node") and value != "1":
            processes = "accel launch runs once on each machine and starts the processes there"
            problems.append(f"submit option {name}={value}: {processes}; say how many with --num_processes")
        elif name == "ntasks" and value != str(request.machines):
            problems.append(f"submit option ntasks={value}: there is one task on each machine; leave it out")
        elif name == "signal" and value.upper().startswith("B:"):
            reaches = f"write signal={value[2:]}, which reaches accel launch"
            problems.append(f"submit option signal={value}: with B: only the batch shell has it; {reaches}")
    if "requeue" in options and "no-requeue" in options:
        problems.append("submit options requeue and no-requeue contradict each other: give one of the two")
    return problems
