"""`accel estimate-memory`: reads the command line, and prints what package accel-big counts."""

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec

import click
from click.shell_completion import CompletionItem

from accel_big.estimate_options import DEFAULT_DTYPES, DEFAULT_OPTIMIZER, DTYPES, STATES

#: options of accelerate estimate-memory, and why they are none here
FOREIGN = {
    "--library_name": "config.json says which library it is of",
    "--trust_remote_code": "no code out of a folder is run; name what makes the model as MODULE:NAME",
    "--batch_size": "activations are not counted, so it has no meaning",
}
HELP = """Prints what a model takes in several dtypes: its largest layer, all of it, gradients, state of the optimizer,
and the sum of what training needs. Nothing is downloaded, no weights are read.

\b
MODEL is one of
  MODULE:NAME        a torch.nn.Module, or what makes one when called without arguments; found as by python in this
                     directory, and built without memory where its constructor allows that
  FILE.py:NAME       the same in a file of code, which is run as by python FILE.py
  FOLDER             with a config.json of transformers, which has to be installed, or with weights in safetensors
  FILE               x.safetensors or x.safetensors.index.json, of which only headers are read. Pickles (.bin, .pt)
                     are refused"""
EPILOG = """\b
examples:
  accel estimate-memory models:make_large
  accel estimate-memory torchvision.models:resnet50 --dtypes float32 --optimizer sgd_momentum
  accel estimate-memory ~/models/llama --dtypes bfloat16 --json

exit codes: 0; 2 if there is nothing to count."""


class _Words(click.ParamType):  # type: ignore[type-arg] # which takes one only in newer versions of click
    """Any word, of which a shell offers some: the report says what is wrong with others."""

    name = "word"

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(words)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Those that begin so."""
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


class _Command(click.Command):
    """Takes all words after --dtypes up to the next option as dtypes, but the last that can be none if MODEL lacks."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads a line.

        Raises: click.UsageError at an option that nobody knows.
        """
        words: list[str] = []
        for word in args:
            flag = word.partition("=")[0]
            if flag in FOREIGN:
                raise click.UsageError(f"{flag} is not an option here: {FOREIGN[flag]}")
            after = words[-1:] == ["--dtypes"]
            if after and word.startswith("-"):
                raise click.UsageError("--dtypes needs a value, found none")
            listed = "--dtypes" in words and not word.startswith("-") and not after and words[-2:-1] == ["--dtypes"]
            words += ["--dtypes", word] if listed else [word]
        try:
            super().parse_args(ctx, words)
        except click.NoSuchOption as error:
            near = get_close_matches(error.option_name, ("--dtypes", "--optimizer", "--json", "--help"), n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            see = "(see accel estimate-memory --help)"
            raise click.UsageError(
                f"{error.option_name} is not an option of accel estimate-memory{meant} {see}"
            ) from None
        wanted, named = (
            [one for part in ctx.params["dtypes"] for one in part.split(",") if one],
            [*ctx.params["models"]],
        )
        if not named and wanted and not wanted[-1].isidentifier():
            named.append(wanted.pop())
        ctx.params |= {"dtypes": tuple(wanted), "models": tuple(named)}
        return []


@click.command("estimate-memory", cls=_Command, help=HELP, epilog=EPILOG)
@click.argument("models", metavar="MODEL", nargs=-1)
@click.option(
    "--dtypes",
    type=_Words(DTYPES),
    metavar="DTYPE ...",
    multiple=True,
    help=f"{', '.join(DTYPES)}. Default: {' '.join(DEFAULT_DTYPES)}. Integers that the model holds stay as they are.",
)
@click.option(
    "--optimizer",
    type=_Words(STATES),
    metavar="OPTIMIZER",
    default=DEFAULT_OPTIMIZER,
    help="adam, adamw, adamax, nadam, radam, adadelta: two numbers for each parameter; rmsprop, adagrad, sgd_momentum:"
    f" one; sgd: none; all in the dtype of the parameters. Default: {DEFAULT_OPTIMIZER}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON, in bytes.")
def COMMAND(models: tuple[str, ...], dtypes: tuple[str, ...], optimizer: str, as_json: bool) -> int:
    """Prints the estimate, and gives exit code 0.

    Raises: CannotRun with every reason why there is none.
    """
    from accel_state.errors import CannotRun

    problems = []
    if len(models) != 1:
        found = "none" if not models else f"{len(models)}: {', '.join(models)}"
        problems.append(f"expected one MODEL, found {found} (see accel estimate-memory --help)")
    if find_spec("torch") is None:
        problems.append(f"torch is not installed for {sys.executable}: pip install torch")
        raise CannotRun("accel estimate-memory", problems)
    from accel_big.estimate_report import report

    text = report(
        models[0] if len(models) == 1 else None,
        dtypes=dtypes or DEFAULT_DTYPES,
        optimizer=optimizer,
        form="json" if as_json else "table",
        problems=problems,
    )
    print(text, flush=True)
    return 0
