"""`accel estimate-memory`: reads the command line, and prints what package accel-big counts."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec

from accel_big.estimate_options import DEFAULT_DTYPES, DEFAULT_OPTIMIZER, DTYPES, STATES

#: each option, with the words that it takes; for completion in a shell
FLAGS: Mapping[str, Sequence[str] | None] = {
    "--dtypes": tuple(DTYPES),
    "--optimizer": tuple(STATES),
    "--json": None,
}
#: options of accelerate estimate-memory, and why they are none here
FOREIGN = {
    "--library_name": "config.json says which library it is of",
    "--trust_remote_code": "no code out of a folder is run; name what makes the model as MODULE:NAME",
    "--batch_size": "activations are not counted, so it has no meaning",
}

HELP = """\
usage: accel estimate-memory MODEL [--dtypes DTYPE ...] [--optimizer OPTIMIZER] [--json]

Prints what a model takes in several dtypes: its largest layer, all of it, gradients, state of the optimizer, and the
sum of what training needs. Nothing is downloaded, no weights are read.

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
class CommandLine:
    """What a command line asks for, and what is wrong with it."""

    models: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    optimizer: str = DEFAULT_OPTIMIZER
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

    line = read(tokens)
    if find_spec("torch") is None:
        line.problems.append(f"torch is not installed for {sys.executable}: pip install torch")
        raise CannotRun("accel estimate-memory", line.problems)
    from accel_big.estimate_report import report

    text = report(
        line.models[0] if len(line.models) == 1 else None,
        dtypes=line.dtypes or DEFAULT_DTYPES,
        optimizer=line.optimizer,
        form="json" if line.json else "table",
        problems=line.problems,
    )
    print(text, flush=True)
    return 0


def read(tokens: Sequence[str]) -> CommandLine:
    """What the tokens ask for; after --dtypes all up to the next option are dtypes.

    If MODEL is missing then, it is the last of these that can be no dtype.
    """
    line = CommandLine()
    position = 0
    while position < len(tokens):
        flag, attached, value = tokens[position].partition("=")
        position += 1
        if not flag.startswith("-"):
            line.models.append(tokens[position - 1])
        elif flag == "--json" and not attached:
            line.json = True
        elif flag in ("--dtypes", "--optimizer"):
            values = [value] if attached else []
            most = 0 if attached else len(tokens) if flag == "--dtypes" else 1
            while len(values) < most and position < len(tokens) and not tokens[position].startswith("-"):
                values.append(tokens[position])
                position += 1
            _follow(line, flag, values)
        else:
            line.problems.append(_unknown(tokens[position - 1], flag))
            return line  # nobody knows whether it takes a value: what follows cannot be told apart
    if not line.models and line.dtypes and not line.dtypes[-1].isidentifier():
        line.models.append(line.dtypes.pop())
    if len(line.models) != 1:
        found = "none" if not line.models else f"{len(line.models)}: {', '.join(line.models)}"
        line.problems.append(f"expected one MODEL, found {found} (see accel estimate-memory --help)")
    return line


def _follow(line: CommandLine, flag: str, values: Sequence[str]) -> None:
    if not any(values):
        line.problems.append(f"{flag} needs a value, found none")
    elif flag == "--dtypes":
        line.dtypes += [one for value in values for one in value.split(",") if one]
    else:
        line.optimizer = values[0]


def _unknown(token: str, flag: str) -> str:
    if flag in FOREIGN:
        return f"{flag} is not an option here: {FOREIGN[flag]}"
    near = get_close_matches(flag, [*FLAGS, "--help"], n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{token} is not an option of accel estimate-memory{meant} (see accel estimate-memory --help)"
