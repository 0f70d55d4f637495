"""Run `accel test`, which launches the check that package accel ships, by the same route as any script."""

from dataclasses import replace

from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions

CHECK = "accel.tools.self_test"
HELP = """Starts a short script that checks, in the same way as accel launch would start yours, that processes find each
other and compute the same."""


def run(options: ResolvedOptions) -> int:
    """Run the check and return its exit code, after a line that tells of success or failure.

    Raises:
        CannotRun: Nothing was started. The error lists every reason.
    """
    from accel_launch.cli.commands.launch import run_to_end
    from accel_launch.job.job import read_job
    from accel_launch.supervise.output import say

    job = read_job(replace(options, settings=options.settings.with_flags(module=True), script=CHECK))
    result = run_to_end(job)
    count = job.count * (job.node.count if job.node is not None else 1)
    processes = "1 process" if count == 1 else f"{count} processes"
    if result.code:
        say(f"accel test: failed on {processes}")
    else:
        print(f"accel test: success on {processes}; this machine is ready", flush=True)
    return result.code


COMMAND = LaunchCommand("test", run, help=HELP)
