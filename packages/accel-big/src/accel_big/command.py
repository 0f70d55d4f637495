"""`accel estimate-memory`: reads the command line, and prints an estimate."""

import re
import sys
from importlib.util import find_spec

import click

from accel_big.estimate_options import DEFAULT_DTYPES, DEFAULT_OPTIMIZER, DTYPES, STATES

_DEVICE_SIZE = re.compile(r"[^=]*=[^/\\:]*")
#: options of accelerate estimate-memory, and why accel has no such option
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
  accel estimate-memory ~/models/llama --max_memory 0=24GB cpu=64GB --plot map.svg

exit codes: 0; 2 if there is nothing to count."""


def _complete(_: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The known words for a shell. Other words are options too: the report says what is wrong with them."""
    words = DTYPES if parameter.name == "dtypes" else STATES
    return [word for word in words if word.startswith(incomplete)]


#: options that take all words up to the next option
LISTED = ("--dtypes", "--max_memory")


class _Command(click.Command):
    """Takes all words after a listed option up to the next option, but for a last word that can only be MODEL."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads a line.

        Raises: click.UsageError for an unknown option.
        """
        words: list[str] = []
        for word in args:
            flag = word.partition("=")[0]
            if flag in FOREIGN:
                raise click.UsageError(f"{flag} is not an option here: {FOREIGN[flag]}")
            option = words[-1] if words and words[-1] in LISTED else None
            if option is not None and word.startswith("-"):
                raise click.UsageError(f"{option} needs a value, found none")
            going_on = len(words) > 1 and words[-2] in LISTED and option is None and not word.startswith("-")
            words += [words[-2], word] if going_on else [word]
        super().parse_args(ctx, words)
        models = [*ctx.params["models"]]
        for name in ("dtypes", "max_memory"):
            values = [value for part in ctx.params[name] for value in part.split(",") if value]
            is_value = str.isidentifier if name == "dtypes" else _DEVICE_SIZE.fullmatch
            if not models and values and not is_value(values[-1]):
                models.append(values.pop())
            ctx.params[name] = tuple(values)
        ctx.params["models"] = tuple(models)
        return []


@click.command("estimate-memory", cls=_Command, help=HELP, epilog=EPILOG)
@click.argument("models", metavar="MODEL", nargs=-1)
@click.option(
    "--dtypes",
    shell_complete=_complete,
    metavar="DTYPE ...",
    multiple=True,
    help=f"{', '.join(DTYPES)}. Default: {' '.join(DEFAULT_DTYPES)}. Integers that the model holds stay as they are.",
)
@click.option(
    "--optimizer",
    shell_complete=_complete,
    metavar="OPTIMIZER",
    default=DEFAULT_OPTIMIZER,
    help="adam, adamw, adamax, nadam, radam, adadelta: two numbers for each parameter; rmsprop, adagrad, sgd_momentum:"
    f" one; sgd: none; all in the dtype of the parameters. Default: {DEFAULT_OPTIMIZER}.",
)
@click.option(
    "--max_memory",
    metavar="DEVICE=SIZE ...",
    multiple=True,
    help="Print also what lies where within this memory, for each dtype: 0=24GB 1=24GB cpu=64GB, and disk=SIZE if it"
    " has a limit. The devices need not be there.",
)
@click.option("--plot", metavar="FILE.svg", help="Draw what lies where.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON, in bytes.")
def COMMAND(
    models: tuple[str, ...],
    dtypes: tuple[str, ...],
    optimizer: str,
    max_memory: tuple[str, ...],
    plot: str | None,
    as_json: bool,
) -> int:
    """Prints the estimate, and returns exit code 0.

    Raises: CannotRun with every reason why there is no estimate.
    """
    from accel_state.errors import CannotRun

    problems = []
    if len(models) != 1:
        given = f"{len(models)}: {', '.join(models)}" if models else "none"
        problems.append(f"expected one MODEL, found {given} (see accel estimate-memory --help)")
    if find_spec("torch") is None:
        problems.append(f"torch is not installed for {sys.executable}: pip install torch")
        raise CannotRun("accel estimate-memory", problems)
    from accel_big.estimate_report import report

    text = report(
        models[0] if len(models) == 1 else None,
        dtypes=dtypes or DEFAULT_DTYPES,
        optimizer=optimizer,
        max_memory=max_memory,
        plot=plot,
        form="json" if as_json else "table",
        problems=problems,
    )
    print(text, flush=True)
    return 0
