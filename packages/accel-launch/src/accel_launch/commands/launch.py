"""`accel launch`: starts a script on one or many processes."""

import gc
from collections.abc import Sequence

from accel_launch.arguments import split


def run(tokens: Sequence[str]) -> int:
    """Runs the script and gives its exit code; one process takes the place of this one and nothing is given.

    Raises: CannotRun with every reason why nothing was started.
    """
    line = split(tokens)
    if line.help:
        from accel_launch.help_text import launch_help

        print(launch_help(), end="")
        return 0
    from accel_state.environ import process_environ

    from accel_launch.job import become, choose, job_from
    from accel_launch.settings import C10D, launch_settings

    environ = process_environ()
    choices = choose(line, environ)
    settings = launch_settings(choices.resolved)
    if settings.submit is not None:
        from pathlib import Path

        from accel_launch.submission import submit

        return submit(line, settings, environ, cwd=Path.cwd(), say=_say, problems=choices.problems)
    job = job_from(line, environ)
    if settings.explain:
        from accel_launch.explained import what_was_found
        from accel_launch.shown_config import setting_lines

        _say("\n".join([*setting_lines(choices, origins=True), *what_was_found(job)]))
    if settings.dry_run:
        from accel_launch.explained import what_would_start

        print("\n".join(what_would_start(job)), flush=True)
        return 0
    if job.place is not None and settings.rdzv_backend == C10D:
        from accel_launch.elastic import become_agent

        become_agent(job, job.place)
    if job.alone:
        become(job)
    from accel_launch.restarts import run_until_done
    from accel_launch.signals import command_line_inbox
    from accel_launch.streams import open_standard_streams

    open_standard_streams()
    # what was read and imported so far stays to the end: nothing is to look through it again, least of all at the exit
    gc.freeze()
    return run_until_done(job, inbox=command_line_inbox, say=_say).code


def _say(words: str) -> None:
    from accel_launch.screen import write
    from accel_launch.streams import ERR

    # not by sys.stderr: where nobody listens any more, that would end this process with a code of its own
    write(ERR, f"{words}\n".encode(errors="backslashreplace"))
