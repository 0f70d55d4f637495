"""`accel estimate-memory`: how much memory a model takes, counted by package accel."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

from accel_launch.nearest import nearest

COUNTS = "accel.estimation"
OPTIONS = ("--dtypes", "--optimizer", "--json", "--help")
#: what package accel knows, in its own order; it imports torch, for which a shell's completion cannot wait
DTYPES = ("float64", "float32", "bfloat16", "float16", "float8", "int8", "int4")
OPTIMIZERS = (
    "adam",
    "adamw",
    "adamax",
    "nadam",
    "radam",
    "adadelta",
    "rmsprop",
    "adagrad",
    "sgd_momentum",
    "sgd",
)
VALUES = {"--dtypes": DTYPES, "--optimizer": OPTIMIZERS}
FOREIGN = {
    "--library_name": "config.json says which library it is of",
    "--trust_remote_code": "no code out of a folder is run; name what makes the model as MODULE:NAME",
    "--batch_size": "activations are not counted, so it has no meaning",
}

HELP = """\
usage: accel estimate-memory MODEL [--dtypes DTYPE ...] [--optimizer OPTIMIZER] [--json]

Prints what a model takes in several dtypes: its largest layer, all of it, gradients, state of the optimizer, and the
sum of what training needs. Nothing is downloaded, no weights are read. Needs package accel.

MODEL is one of
  MODULE:NAME        a torch.nn.Module, or what makes one when called without arguments; found as by python in this
                     directory, and built without memory where its constructor allows that
  FILE.py:NAME       the same in a file of code, which is run as by python FILE.py
  FOLDER             with a config.json of transformers, which has to be installed, or with weights in safetensors
  FILE               x.safetensors or x.safetensors.index.json, of which only headers are read. Pickles (.bin, .pt)
                     are refused

options:
  -h, --help
      This help.
  --dtypes DTYPE ...
      float64, float32, bfloat16, float16, float8, int8, int4. Default: float32 bfloat16 int8 int4. Integers that the
      model holds stay as they are.
  --optimizer OPTIMIZER
      adam, adamw, adamax, nadam, radam, adadelta: two numbers for each parameter; rmsprop, adagrad, sgd_momentum: one;
      sgd: none; all in the dtype of the parameters. Default: adamw.
  --json
      Print all of it as JSON, in bytes.

examples:
  accel estimate-memory models:make_large
  accel estimate-memory torchvision.models:resnet50 --dtypes float32 --optimizer sgd_momentum
  accel estimate-memory ~/models/llama --dtypes bfloat16 --json

exit codes: 0; 2 if there is nothing to count.
"""


@dataclass(slots=True)
class Asked:
    """What a command line asks for, and what is wrong with it."""

    models: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    optimizer: str = "adamw"
    json: bool = False
    problems: list[str] = field(default_factory=list)


def run(tokens: Sequence[str]) -> int:
    """Prints the estimate, and gives exit code 0.

    Raises: CannotRun with every reason why there is none.
    """
    if "-h" in tokens or "--help" in tokens:
        print(HELP, end="")
        return 0
    from accel_state.errors import CannotRun

    asked = read(tokens)
    missing = [name for name in ("accel", "torch") if find_spec(name) is None]
    if missing:
        asked.problems.append(
            f"what counts is module {COUNTS} of package accel, and {' and '.join(missing)} is not installed for"
            f" {sys.executable}; install package accel next to accel-launch"
        )
        raise CannotRun("accel estimate-memory", asked.problems)
    estimation = import_module(COUNTS)
    text = estimation.report(
        asked.models[0] if len(asked.models) == 1 else None,
        dtypes=asked.dtypes or estimation.USUAL,
        optimizer=asked.optimizer,
        form="json" if asked.json else "table",
        problems=asked.problems,
    )
    print(text, flush=True)
    return 0


def read(tokens: Sequence[str]) -> Asked:
    """What the tokens ask for; after --dtypes all up to the next option are dtypes.

    If MODEL is missing then, it is the last of these that can be no dtype.
    """
    asked = Asked()
    position = 0
    while position < len(tokens):
        flag, attached, value = tokens[position].partition("=")
        position += 1
        if not flag.startswith("-"):
            asked.models.append(tokens[position - 1])
        elif flag == "--json" and not attached:
            asked.json = True
        elif flag in ("--dtypes", "--optimizer"):
            values = [value] if attached else []
            most = 0 if attached else len(tokens) if flag == "--dtypes" else 1
            while len(values) < most and position < len(tokens) and not tokens[position].startswith("-"):
                values.append(tokens[position])
                position += 1
            _follow(asked, flag, values)
        else:
            asked.problems.append(_unknown(tokens[position - 1], flag))
            return asked  # nobody knows whether it takes a value: what follows cannot be told apart
    if not asked.models and asked.dtypes and not asked.dtypes[-1].isidentifier():
        asked.models.append(asked.dtypes.pop())
    if len(asked.models) != 1:
        found = "none" if not asked.models else f"{len(asked.models)}: {', '.join(asked.models)}"
        asked.problems.append(f"expected one MODEL, found {found} (see accel estimate-memory --help)")
    return asked


def _follow(asked: Asked, flag: str, values: Sequence[str]) -> None:
    if not any(values):
        asked.problems.append(f"{flag} needs a value, found none")
    elif flag == "--dtypes":
        asked.dtypes += [one for value in values for one in value.split(",") if one]
    else:
        asked.optimizer = values[0]


def _unknown(token: str, flag: str) -> str:
    if flag in FOREIGN:
        return f"{flag} is not an option here: {FOREIGN[flag]}"
    near = nearest(flag, OPTIONS)
    meant = f"; did you mean {near}?" if near is not None else ""
    return f"{token} is not an option of accel estimate-memory{meant} (see accel estimate-memory --help)"
