"""The help of the command line, made from the table of options."""

import textwrap
from collections.abc import Iterable

from accel_launch.options import OPTIONS, Option

WIDTH = 100

PROGRAM = """\
usage: accel COMMAND [options]

Starts PyTorch training scripts on one or many processes.

commands:
{commands}

  accel COMMAND --help    what a command takes
  accel --version         the version
"""

LAUNCH = """\
usage: accel launch [options] SCRIPT [arguments of the script]

Starts SCRIPT once for each accelerator, or on as many processes as you ask for. Everything after SCRIPT goes to
SCRIPT untouched.

options:
{options}

Each long option may be written with dashes as well: --num-processes. A value is taken from the first of these that
has one: the option, its environment variable, the config file, the default. Options of accelerate launch that ask for
nothing else, such as --multi_gpu and --dynamo_backend no, are accepted.

examples:
  accel launch train.py --lr 0.1            one process for each GPU, or one where there is none
  accel launch -n 2 --cpu train.py          two processes on the CPU
  accel launch --gpu_ids 0,2 train.py       one process for each of these two GPUs
  accel launch -n 4 -m my_package.train     a module, as in python -m
  accel launch --no_python -n 2 ./run.sh    a program that is not a Python file
  accel launch --config_file two.yaml train.py

exit codes: that of the first process to fail; 128 + n if signal n killed it; 2 if nothing could be started.
"""

TEST = """\
usage: accel test [options]

Starts a short script that checks, in the same way as accel launch would start yours, that processes find each other
and compute the same. Takes the options of accel launch, except --module and --no_python.

options:
{options}
"""

CHECKPOINT = """\
usage: accel checkpoint ls PATH
       accel checkpoint verify PATH
       accel checkpoint diff PATH OTHER

What is in a checkpoint of accel, whether it is whole, and what has changed from one to another. Needs package
accel-checkpoint. Runs no code from the files.

commands:
  ls PATH            lists the checkpoints in a folder, or the files and the state of one
  verify PATH        reads every file of a checkpoint, or of all in a folder, and compares it with what was written
  diff PATH OTHER    names what one has and the other lacks, and what differs: settings, state, tensors by how much

examples:
  accel checkpoint ls runs/digits
  accel checkpoint verify runs/digits/checkpoints/checkpoint_12
  accel checkpoint diff runs/digits/checkpoints/checkpoint_11 runs/digits/checkpoints/checkpoint_12

exit codes: 0 if all is well; 1 if verify finds damage, or diff a difference; 2 if there is nothing to look at.
"""

ENV = """\
usage: accel env [options]

Prints versions, devices, the config file, and which value each launch option would have, and why. With the options
of accel launch it tells how they would change that.

options:
{options}
"""


def program_help(commands: Iterable[tuple[str, str]]) -> str:
    """The help of `accel` itself, given each command with what it does."""
    return PROGRAM.format(commands="\n".join(f"  {name:<17}{about}" for name, about in commands))


def launch_help() -> str:
    """The help of `accel launch`, which lists every option."""
    return LAUNCH.format(options=list_options(OPTIONS))


def test_help() -> str:
    """The help of `accel test`."""
    return TEST.format(options=list_options(_without_script()))


def checkpoint_help() -> str:
    """The help of `accel checkpoint`."""
    return CHECKPOINT


def env_help() -> str:
    """The help of `accel env`."""
    return ENV.format(options=list_options(_without_script()))


def _without_script() -> Iterable[Option]:
    return (option for option in OPTIONS if option.name not in ("module", "no_python"))


def list_options(options: Iterable[Option]) -> str:
    """One entry for each option: its flags, what it does, and where else it may be set; --help comes first."""
    entries = [(("-h, --help"), "This help.", ""), *((_flags(each), each.help, _places(each)) for each in options)]
    lines = []
    for flags, about, places in entries:
        lines.append(f"  {flags}")
        lines += textwrap.wrap(f"{about} {places}".strip(), WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _flags(option: Option) -> str:
    value = f" {option.kind.metavar}" if option.kind.takes_value else ""
    off = f", {option.off[0]}" if option.off else ""
    return ", ".join(option.flags) + off + value


def _places(option: Option) -> str:
    places = [
        *([f"file: {option.key}"] if option.key is not None else []),
        *([f"variable: {option.variable}"] if option.variable is not None else []),
    ]
    return f"[{'; '.join(places)}]" if places else ""
