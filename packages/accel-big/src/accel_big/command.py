"""Read the command line of `accel estimate-memory`, and print an estimate."""

import re
from collections.abc import Sequence
from typing import Any

import click

from accel_big.estimate_options import DEFAULT_DTYPES, DEFAULT_OPTIMIZER, DTYPES, STATES

#: the values of options that take all words up to the next option, or to a word that is no value
VALUES = {"--dtypes": re.compile(r"[\w,]+"), "--max_memory": re.compile(r"[^=]*=[^/\\:]*")}
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
  accel estimate-memory ~/models/llama --max_memory 0=24GB cpu=64GB

exit codes: 0; 2 if there is nothing to count."""


def _complete(_: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the known words for a shell. Other words are options too: the report says what is wrong with them."""
    words = DTYPES if parameter.name == "dtypes" else STATES
    return [word for word in words if word.startswith(incomplete)]


def _split(_: click.Context, __: click.Parameter, values: Sequence[str]) -> list[str]:
    return list(filter(None, ",".join(values).split(",")))


class _Command(click.Command):
    """A command whose listed options take several words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a command line, or raise click.UsageError for an option that is unknown or has no value."""
        words = ["", ""]
        for word in args:
            flag = word.partition("=")[0]
            if flag in FOREIGN:
                raise click.UsageError(f"{flag} is not an option here: {FOREIGN[flag]}")
            if words[-1] in VALUES and word.startswith("-"):
                raise click.UsageError(f"{words[-1]} needs a value, found none")
            if words[-2] in VALUES and VALUES[words[-2]].fullmatch(word):
                words[-1] += f",{word}"
            else:
                words.append(word)
        return super().parse_args(ctx, words[2:])


@click.command("estimate-memory", cls=_Command, help=HELP, epilog=EPILOG)
@click.argument("model")
@click.option(
    "--dtypes",
    shell_complete=_complete,
    metavar="DTYPE ...",
    multiple=True,
    default=DEFAULT_DTYPES,
    callback=_split,
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
    callback=_split,
    help="Print also what lies where within this memory, for each dtype: 0=24GB 1=24GB cpu=64GB, and disk=SIZE if it"
    " has a limit. The devices need not be there.",
)
@click.option("--json", "form", flag_value="json", default="table", help="Print all of it as JSON, in bytes.")
def COMMAND(model: str, **options: Any) -> int:
    """Print the estimate of a model in the form that the options ask for, and return exit code 0.

    Raises:
        CannotRun: There is no estimate. The error has every reason.
    """
    from accel_big.estimate_report import report

    print(report(model, **options), flush=True)
    return 0
