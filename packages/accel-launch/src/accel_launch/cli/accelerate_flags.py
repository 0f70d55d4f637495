"""The flags of `accelerate launch` and torchrun that are not accel's: which ask for nothing here, and words for others.

Source: shared/reference/accelerate-api.md, section 1.12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import click

from accel_launch.cli.suggest import nearest_flag
from accel_launch.config.accelerate_config import (
    MEANS_NOTHING,
    NOT_YET,
    WITH_MPIRUN,
    WITHOUT_IPEX,
    anything,
    nothing,
    nothing_or,
    unsupported,
)


@dataclass(frozen=True, slots=True)
class AccelerateFlag:
    """One flag: `unsupported` tells why a value cannot be followed, or None where the value means nothing here.

    A flag that takes no value has the value True. `own` is the option that does it here, empty where none does.
    """

    takes_value: bool
    unsupported: Callable[[object], str | None]
    own: str = ""


def _as_key(key: str, *, takes_value: bool = True) -> AccelerateFlag:
    """A flag that is judged as the key of that name in a config file is."""
    if key not in MEANS_NOTHING:
        raise ValueError(f"{key!r} is no key of Accelerate's config files: expected one of {', '.join(MEANS_NOTHING)}")
    return AccelerateFlag(takes_value, lambda value: unsupported(key, value))


def _only(accepted: Callable[[object], bool], why: str = NOT_YET, *, takes_value: bool = True) -> AccelerateFlag:
    return AccelerateFlag(takes_value, lambda value: None if accepted(value) else why)


def _renamed(own: str, meaning: str = "", *, takes_value: bool = True) -> AccelerateFlag:
    """A flag of torchrun or of an older launcher whose work is done by an option of another name."""
    return AccelerateFlag(takes_value, lambda value: f"here it is {own}{f', {meaning}' if meaning else ''}", own)


_ALL_MACHINES = "which counts the processes of all machines together"
_ONE_JOB = "machines of one job find each other by the address and the port alone"
_TPU = "accel launch cannot use TPUs yet"
_DEEPSPEED = "accel cannot use DeepSpeed yet"
_FSDP = "accel launch cannot set up FSDP yet"
_MEGATRON = "accel cannot use Megatron-LM yet"
_PARALLELISM = "accel launch cannot set up parallelism within a model yet"
_SAGEMAKER = "accel launch --submit sagemaker takes credentials from the client of AWS, and not from the command line"

_TABLE: dict[str, AccelerateFlag] = {
    "--debug": _as_key("debug", takes_value=False),
    "--downcast_bf16": _as_key("downcast_bf16", takes_value=False),
    "--dynamo_backend": _as_key("dynamo_backend"),
    "--main_training_function": _as_key("main_training_function"),
    "--same_network": _as_key("same_network", takes_value=False),
    "--env": _only(nothing, _TPU),
    "--no_tpu_cluster": _only(anything, takes_value=False),
    "--tpu": _only(nothing, _TPU, takes_value=False),
    "--tpu_cluster": _only(nothing, _TPU, takes_value=False),
    "--tpu_use_sudo": _only(nothing, _TPU, takes_value=False),
    "--vm": _only(nothing, _TPU),
    "--monitor_interval": _only(anything),
    # Several processes on GPUs are what accel launch starts where it finds GPUs.
    "--multi_gpu": _only(anything, takes_value=False),
    # It hides Accelerate's own traceback, and accel launch prints none.
    "--quiet": _only(anything, takes_value=False),
    "-q": _only(anything, takes_value=False),
    "--rdzv_conf": _only(nothing, "accel launch has --join_timeout, and no other setting of a rendezvous"),
    "--role": _only(nothing_or("default")),
    "--use_deepspeed": _only(nothing, _DEEPSPEED, takes_value=False),
    "--use_fsdp": _only(nothing, _FSDP, takes_value=False),
    "--use_megatron_lm": _only(nothing, _MEGATRON, takes_value=False),
    "--use_parallelism_config": _only(nothing, _PARALLELISM, takes_value=False),
    "--mpirun_hostfile": _only(nothing, WITH_MPIRUN),
    "--mpirun_ccl": _only(nothing_or("0"), WITH_MPIRUN),
    "--ipex": _only(nothing, WITHOUT_IPEX, takes_value=False),
    "--use_xpu": _only(nothing, WITHOUT_IPEX, takes_value=False),
    "--aws_access_key_id": _only(nothing, _SAGEMAKER),
    "--aws_secret_access_key": _only(nothing, _SAGEMAKER),
    "--use_cpu": _renamed("--cpu", takes_value=False),
    "--use_gpu": _only(nothing, "accel launch uses GPUs where it finds some", takes_value=False),
    "--bf16": _renamed("--mixed_precision bf16", takes_value=False),
    "--gpu": _renamed("--gpu_ids"),
    "--gpus": _renamed("--gpu_ids", "numbers such as 0,1; how many processes is --num_processes"),
    "--num_gpus": _renamed("--num_processes", _ALL_MACHINES),
    "--num_nodes": _renamed("--num_machines"),
    "--nproc": _renamed("--num_processes", _ALL_MACHINES),
    "--nproc_per_node": _renamed("--num_processes", _ALL_MACHINES),
    "--nnodes": _renamed("--num_machines"),
    "--node_rank": _renamed("--machine_rank"),
    "--master_addr": _renamed("--main_process_ip"),
    "--master_port": _renamed("--main_process_port"),
    "--rdzv_endpoint": _renamed("--main_process_ip HOST --main_process_port PORT"),
    "--rdzv_id": _only(nothing_or("none"), _ONE_JOB),
    # One machine, and a free port: what accel launch does where nothing else is asked for.
    "--standalone": _only(anything, takes_value=False),
    "--redirects": _renamed("--log_dir", "which keeps what each process prints"),
    # It has no effect any more: both set LOCAL_RANK.
    "--use_env": _only(anything, takes_value=False),
}

_FAMILIES = {
    "--deepspeed_": _DEEPSPEED,
    "--zero3_": _DEEPSPEED,
    "--zero_stage": _DEEPSPEED,
    "--offload_": _DEEPSPEED,
    "--gradient_clipping": f"{_DEEPSPEED}; Accelerator.clip_grad_norm_ clips in the script",
    "--dynamo_": "accel launch cannot compile models yet; call torch.compile in the script",
    "--fp8_": "accel has no settings for fp8 yet",
    "--fsdp_": _FSDP,
    "--megatron_lm_": _MEGATRON,
    "--parallelism_config_": _PARALLELISM,
}


@final
class AccelerateOption(click.Option):
    """A flag of the table: it sets nothing, and a value that asks for something is noted as a problem."""

    def __init__(self, flag: str, about: AccelerateFlag) -> None:
        self.flag, self.about = flag, about
        flags = {flag, f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag}
        name = f"accelerate_{flag.lstrip('-')}"
        super().__init__([name, *flags], is_flag=not about.takes_value, hidden=True, expose_value=False, default=None)

    def handle_parse_result(self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]) -> Any:
        """Judges the value that was given."""
        value = opts.get(str(self.name))
        if value is None:
            return None, args
        shown = self.flag if value is True else f"{self.flag} {value}"
        number = isinstance(value, str) and value.removeprefix("-").isdecimal()
        why = self.about.unsupported(int(value) if number else value)
        if value in ctx.obj.flags:
            ctx.obj.problems.append(f"{self.flag} needs a value (as for accelerate launch), found the option {value}")
        elif why is not None and self.about.own:
            ctx.obj.problems.append(f"{shown} is not an option of accel launch: {why}")
        elif why is not None:
            ctx.obj.problems.append(f"{shown} is not supported: {why}; leave it out")
        return None, args


ACCELERATE_OPTIONS = tuple(AccelerateOption(flag, about) for flag, about in _TABLE.items())


def unknown_flag(flag: str, own: Mapping[str, str]) -> str:
    """What is wrong with a flag that nobody knows; `own` are those of accel."""
    plain = flag.replace("-", "_").replace("__", "--", 1)
    why = next((why for start, why in _FAMILIES.items() if plain.startswith(start)), None)
    if why is not None:
        return f"{flag} is not supported: {why}; leave it out"
    suggested = {**_suggestions(), **own}
    near = nearest_flag(flag, suggested)
    meant = f"; did you mean {suggested[near]}?" if near is not None else ""
    see = "see accel launch --help; options for the script come after the script"
    return f"{flag} is not an option of accel launch{meant} ({see})"


def _suggestions() -> dict[str, str]:
    """What to suggest to whoever has nearly written a flag: itself, or what does it here; nothing that is refused."""
    found = {}
    for option in ACCELERATE_OPTIONS:
        about = option.about
        for flag in option.opts:
            # A short name is like many words: only who writes it as it is has meant it.
            if about.own and len(flag) > len("--nproc"):
                found[flag] = about.own
            elif not about.own and about.unsupported("any word" if about.takes_value else True) is None:
                found[flag] = flag
    return found
