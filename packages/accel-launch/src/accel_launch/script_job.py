"""Let commands of other packages run a script with the options of `accel launch`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accel_launch.cli.launch_command import ResolvedOptions


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """A script with its arguments, and how `accel launch` would start it on this machine.

    Args:
        options: The resolved options of the command line.
        count: Number of processes.
    """

    options: ResolvedOptions
    count: int

    def run(self, module: str, arguments: Sequence[str], **changed: object) -> tuple[int, str]:
        """Run a module in place of the script, to its end.

        Args:
            module: Module to run.
            arguments: Its arguments.
            changed: Settings that differ.

        Returns:
            The exit code, and the last words on a failure. The code of a failure is 1, unless a signal from outside
            ended the
            job.

        Raises:
            CannotRun: The module cannot be started.
        """
        from accel_launch.job.job import read_job
        from accel_launch.job.job_runner import run_job
        from accel_launch.report.failure_report import explain
        from accel_launch.supervise.signals import command_line_signals

        options = replace(
            self.options,
            settings=self.options.settings.with_flags(module=True, **changed),
            script=module,
            arguments=tuple(arguments),
        )
        result = run_job(read_job(options), command_line_signals())
        code = min(result.code, 1) if result.outside is None else result.code
        return code, explain(result) or ""


def read_script_job(command: str, options: ResolvedOptions) -> ScriptJob:
    """Return the script and the processes that a command line asks for.

    Args:
        command: Command to name in errors.
        options: The resolved options of the command line.

    Raises:
        CannotRun: Nothing can be started. The error lists all reasons.
    """
    from accel_state.errors import CannotRun

    from accel_launch.job.job import read_job

    try:
        job = read_job(options)
    except CannotRun as error:
        raise CannotRun(command, error.reasons) from None
    if job.node is not None:
        raise CannotRun(command, [f"{command} runs on one machine: leave out --num_machines"])
    return ScriptJob(options, job.count)
