"""Run `accel runs`: list, show, compare and draw the records of runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click
from accel_state.errors import CannotRun

from accel_runs.recorded_run import RecordedRun, find_run, find_runs
from accel_runs.tables import compare_runs, list_runs, show_run

PATH = click.Path(path_type=Path)
FOLDER = click.option(
    "--dir", "folder", type=PATH, default="runs", show_default=True, help="The logging_dir of the runs."
)
RUNS = click.argument("run", nargs=-1, required=True)
EPILOG = """\b
examples:
  accel runs                                   what there is in the folder runs
  accel runs show last --dir out               the last values of the newest run in the folder out
  accel runs compare 20261123-0 20261123-1     by the beginnings of their names
  accel runs plot last -o page.html

exit codes: 0; 2 if a run is not there."""


@click.group(invoke_without_command=True, epilog=EPILOG, short_help="list, show, compare and draw the records of runs")
@FOLDER
@click.pass_context
def runs(context: click.Context, folder: Path) -> None:
    """List the records that Accelerator(log_with="local") has left, or do more with them."""
    if context.invoked_subcommand is None:
        context.invoke(list_, folder=folder)


@runs.command("list")
@FOLDER
def list_(folder: Path) -> None:
    """List the runs in a folder, the newest last."""
    click.echo("\n".join(list_runs(find_runs(folder), folder)))


@runs.command()
@click.argument("run")
@FOLDER
def show(run: str, folder: Path) -> None:
    """Show what RUN was, and the last value of each metric."""
    click.echo("\n".join(show_run(find_run(run, folder))))


@runs.command()
@RUNS
@FOLDER
def compare(run: Sequence[str], folder: Path) -> None:
    """Show the last values of several RUNs side by side, and what differs in their configurations."""
    chosen = _distinct(run, folder)
    if len(chosen) == 1 < len(run):
        click.echo(f"{' and '.join(run)} are the same run\n")
    click.echo("\n".join(compare_runs(chosen)))


@runs.command(help="Draw the metrics of RUNs into one page, which needs no network.")
@RUNS
@click.option("-o", "--output", type=PATH, required=True, help="The page to write.")
@click.option("-m", "--metric", multiple=True, help="A metric to draw; all, if none is named. May be given again.")
@FOLDER
def plot(run: Sequence[str], output: Path, metric: Sequence[str], folder: Path) -> None:
    """Draw metrics of runs into one page.

    Args:
        run: The runs, as for `find_run`.
        output: The page to write.
        metric: Names of the metrics; if it is empty, all.
        folder: Folder with the runs.

    Raises:
        CannotRun: A run or metric does not exist, bokeh is not installed, or the page cannot be written.
    """
    chosen = _distinct(run, folder)
    known = sorted({name for record in chosen for name in record.series})
    problems = [f"no metric {name!r}; there are: {', '.join(known) or 'none'}" for name in metric if name not in known]
    if find_spec("bokeh") is None:
        problems.append("pages are drawn by bokeh, which is not installed: pip install bokeh")
    if problems:
        raise CannotRun("accel runs plot", problems)
    from accel_runs.bokeh import render_page

    try:
        # a name may have half of a pair of surrogates, which UTF-8 lacks
        output.write_text(render_page(chosen, metric or known), encoding="utf-8", errors="replace")
    except OSError as error:
        raise CannotRun("accel runs plot", [f"{output} could not be written: {error}"]) from error
    click.echo(f"{len(chosen)} runs, {len(metric or known)} metrics: {output}")


def _distinct(words: Sequence[str], folder: Path) -> list[RecordedRun]:
    return list({run.folder: run for run in (find_run(word, folder) for word in words)}.values())


COMMAND = runs
