"""Read and write the environment variables that launchers and workers share: no other file of the libraries does."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from accel_state.errors import TopologyError
from accel_state.topology import Topology

PREFIX = "ACCEL_"
#: the folder of the config file
HOME = "ACCEL_HOME"
STORE_PORT = "ACCEL_STORE_PORT"
STORE_FD = "ACCEL_STORE_FD"
USE_CPU = "ACCEL_USE_CPU"
MIXED_PRECISION = "ACCEL_MIXED_PRECISION"
ACCUMULATION_STEPS = "ACCEL_GRADIENT_ACCUMULATION_STEPS"
#: whether models are sharded over processes, and how, as name=value,...
USE_FSDP = "ACCEL_USE_FSDP"
FSDP_CONFIG = "ACCEL_FSDP_CONFIG"
#: the sizes of the axes of parallelism, as name=value,...
PARALLELISM_CONFIG = "ACCEL_PARALLELISM_CONFIG"
#: whether DeepSpeed's engine trains, and how, as name=value,...
USE_DEEPSPEED = "ACCEL_USE_DEEPSPEED"
DEEPSPEED_CONFIG = "ACCEL_DEEPSPEED_CONFIG"
#: how torch.compile compiles models, as name=value,...
DYNAMO_CONFIG = "ACCEL_DYNAMO_CONFIG"
#: whether `import accelerate` is answered by accel, which package accel-compat does
AS_ACCELERATE = "ACCEL_AS_ACCELERATE"
#: a folder in which each process notes its exchanges, for the launcher to read
FLIGHT_RECORDER = "ACCEL_FLIGHT_RECORDER"
#: the folder of the job that a process is of, after those of the jobs around it
JOBS = "ACCEL_JOBS"
#: how often the processes of a job were started before
ATTEMPT = "ACCEL_ATTEMPT"
#: what a process leaves in that folder when it has got further: a checkpoint is on the disk
PROGRESS = "progress"
#: the folder for checkpoints in memory, which belongs to the launcher of the machine
MEMORY_CHECKPOINTS = "ACCEL_MEMORY_CHECKPOINTS"
#: how often they are taken, as the launcher was told
MEMORY_CHECKPOINT_EVERY = "ACCEL_MEMORY_CHECKPOINT_EVERY"
#: the level of loggers of accel.logging that were not given one
LOG_LEVEL = "ACCEL_LOG_LEVEL"
#: whether processes of one machine share memory for small messages; yes where nothing is said
SHARED_MEMORY = "ACCEL_SHARED_MEMORY"
#: whether waits are watched; yes where nothing is said
WATCHDOG = "ACCEL_WATCHDOG"
#: whether gloo connects two ranks when they first exchange, and not all at once
LAZY_GLOO = "TORCH_GLOO_LAZY_INIT"

#: settings of which Accelerate has a variable of the same meaning
_OF_ACCELERATE = {
    USE_CPU: "ACCELERATE_USE_CPU",
    MIXED_PRECISION: "ACCELERATE_MIXED_PRECISION",
    ACCUMULATION_STEPS: "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    USE_FSDP: "ACCELERATE_USE_FSDP",
}
TRUE = ("1", "true", "yes", "on", "y", "t")
FALSE = ("0", "false", "no", "off", "n", "f")


def process_environ() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ


def set_default(name: str, value: str) -> str:
    """Set a variable that another library reads, if it is not set, and return its value."""
    return os.environ.setdefault(name, value)


@contextmanager
def changed(values: Mapping[str, str | None]) -> Iterator[None]:
    """Change variables inside of the block, and restore them after it.

    Args:
        values: Value of each variable; None removes it.
    """
    before = {name: os.environ.get(name) for name in values}
    change(values)
    try:
        yield
    finally:
        change(before)


def change(values: Mapping[str, str | None]) -> None:
    """Set variables, and remove those whose value is None."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def flag(environ: Mapping[str, str], name: str) -> bool:
    """Return the truth of a variable, which is False if it is not set.

    Raises:
        ValueError: For a word that is neither true nor false.
    """
    word = environ.get(name, "").strip().lower()
    if word in TRUE:
        return True
    if word in ("", *FALSE):
        return False
    raise ValueError(f"{name}={environ[name]!r}: expected one of {', '.join(TRUE + FALSE)}")


def pairs(text: str) -> dict[str, str] | None:
    """Return the values of a text such as a=1,b=2 by their names, or None if the text is malformed.

    A comma belongs to a value unless a name and an equals sign follow: names=One,Two,size=3 has two names. No name
    may be there twice.
    """
    entries = [entry.partition("=") for entry in re.split(r",(?=[^,=]*=)", text)]
    found = {name.strip(): value.strip() for name, _, value in entries}
    return found if len(found) == len(entries) and all(name.strip() and equals for name, equals, _ in entries) else None


def integers(environ: Mapping[str, str], names: Iterable[str], launcher: str) -> list[int]:
    """Return the integers of several variables, all of which must be set.

    Args:
        environ: The environment.
        names: Names of the variables.
        launcher: Name of the launcher that sets them, for error messages.

    Raises:
        TopologyError: With every variable as it is, if one is missing or malformed.
    """
    names = tuple(names)
    if not all(environ.get(name, "").strip().removeprefix("-").isdecimal() for name in names):
        raise TopologyError(
            f"{half_set(environ, names, launcher)}. Set each of them to a whole number, or unset all of them to run as"
            " a single process"
        )
    return [int(environ[name].strip()) for name in names]


def half_set(environ: Mapping[str, str], names: Iterable[str], launcher: str) -> str:
    """Return what variables say of which one is missing or malformed, as the begin of an error message.

    Args:
        environ: The environment.
        names: Names of the variables.
        launcher: Name of the launcher that sets them.
    """
    said = [f"{name}={environ[name]!r}" if name in environ else f"{name} is missing" for name in names]
    return f"the environment is half set by {launcher}: {', '.join(said)}"


def worker_environ(topology: Topology) -> dict[str, str]:
    """Return the variables by which a launcher tells a worker its rank.

    `environments.elastic` reads them back.
    """
    variables = {
        "RANK": str(topology.rank),
        "WORLD_SIZE": str(topology.world_size),
        "LOCAL_RANK": str(topology.local_rank),
        "LOCAL_WORLD_SIZE": str(topology.local_world_size),
        "GROUP_RANK": str(topology.node_rank),
    }
    rendezvous = topology.rendezvous
    if rendezvous is not None:
        variables["MASTER_ADDR"] = rendezvous.address
        variables[STORE_PORT] = str(rendezvous.port)
        if rendezvous.listen_fd is not None:
            variables[STORE_FD] = str(rendezvous.listen_fd)
    return variables


@dataclass(frozen=True, slots=True)
class EnvironSettings:
    """The settings of training that the environment gives, where None and False say nothing.

    Args:
        cpu: Whether to train on the CPU.
        mixed_precision: Name of the precision.
        accumulation_steps: Micro-batches of an optimizer step.
        fsdp: Options of sharding, by name.
        parallelism: Sizes of the axes of the mesh, by name.
        deepspeed: Options of DeepSpeed, by name.
        dynamo: Options of `torch.compile`, by name.
    """

    cpu: bool = False
    mixed_precision: str | None = None
    accumulation_steps: int | None = None
    fsdp: Mapping[str, str] | None = None
    parallelism: Mapping[str, str] | None = None
    deepspeed: Mapping[str, str] | None = None
    dynamo: Mapping[str, str] | None = None


def settings(environ: Mapping[str, str]) -> EnvironSettings:
    """Return the settings of training that a launcher has written into the environment.

    For a program that was written for Accelerate, those of Accelerate's launcher count as well.

    Raises:
        ValueError: For a malformed value.
    """
    door = flag(environ, AS_ACCELERATE)
    names = {ours: word if door and ours not in environ else ours for ours, word in _OF_ACCELERATE.items()}
    steps = environ.get(names[ACCUMULATION_STEPS])
    if steps is not None and (not steps.isdecimal() or int(steps) < 1):
        raise ValueError(f"{names[ACCUMULATION_STEPS]}={steps!r}: expected a whole number of at least 1")
    return EnvironSettings(
        cpu=flag(environ, names[USE_CPU]),
        mixed_precision=environ.get(names[MIXED_PRECISION]) or None,
        accumulation_steps=int(steps) if steps is not None else None,
        fsdp=_pairs_of(environ, FSDP_CONFIG) or {} if flag(environ, names[USE_FSDP]) else None,
        parallelism=_pairs_of(environ, PARALLELISM_CONFIG),
        deepspeed=_pairs_of(environ, DEEPSPEED_CONFIG) or {} if flag(environ, USE_DEEPSPEED) else None,
        dynamo=_pairs_of(environ, DYNAMO_CONFIG),
    )


def _pairs_of(environ: Mapping[str, str], name: str) -> Mapping[str, str] | None:
    text = environ.get(name)
    found = pairs(text) if text else None
    if text and found is None:
        raise ValueError(f"{name}={text!r}: expected different names with values, such as tp_size=2,dp_shard_size=4")
    return found
