"""Find out which flags of `accelerate launch` and torchrun ask for something that is not here.

Source:
    shared/reference/accelerate-api.md, section 1.12.
"""

from __future__ import annotations

from typing import final

import click

from accel_launch.cli.suggest import suggest
from accel_launch.config.accelerate_config import NOT_YET, WITH_MPIRUN, WITHOUT_IPEX, asks_nothing

_TPU = "accel launch cannot use TPUs yet"
_BY_LAUNCHER = "accel launch starts all processes by itself, without DeepSpeed's launchers"
_MEGATRON = "accel cannot use Megatron-LM yet"
_ALL_MACHINES = "--num_processes, which counts the processes of all machines together"

#: flags that ask for nothing here, whatever their value is; one that takes a value ends in =
_IGNORED = (
    "--debug --multi_gpu --quiet -q --same_network --no_tpu_cluster --standalone --use_env --use_parallelism_config"
    " --monitor_interval= --main_training_function="
)
#: flags by the reason why they cannot be followed, unless their value asks for nothing, or is the value after the =
_UNSUPPORTED = {
    NOT_YET: "--downcast_bf16",
    _TPU: "--env= --tpu --tpu_cluster --tpu_use_sudo --vm=",
    _MEGATRON: "--use_megatron_lm",
    WITH_MPIRUN: "--mpirun_hostfile= --mpirun_ccl=",
    WITHOUT_IPEX: "--ipex --use_xpu",
    "accel launch uses GPUs where it finds some": "--use_gpu",
    "all processes of a job have the same role": "--role=default",
    "accel launch has --join_timeout, and no other setting of a rendezvous": "--rdzv_conf=",
    "machines of one job find each other by the address and the port alone": "--rdzv_id=",
    "accel launch --submit sagemaker takes credentials from the client of AWS, and not from the command line": (
        "--aws_access_key_id= --aws_secret_access_key="
    ),
}
#: flags whose work is done here by an option of another name
_RENAMED = {
    "--use_cpu": "--cpu",
    "--bf16": "--mixed_precision bf16",
    "--gpu=": "--gpu_ids",
    "--gpus=": "--gpu_ids, numbers such as 0,1; how many processes is --num_processes",
    "--num_gpus=": _ALL_MACHINES,
    "--nproc=": _ALL_MACHINES,
    "--nproc_per_node=": _ALL_MACHINES,
    "--num_nodes=": "--num_machines",
    "--nnodes=": "--num_machines",
    "--node_rank=": "--machine_rank",
    "--master_addr=": "--main_process_ip",
    "--master_port=": "--main_process_port",
    "--rdzv_endpoint=": "--main_process_ip HOST --main_process_port PORT",
    "--redirects=": "--log_dir, which keeps what each process prints",
}
#: what the names of flags begin with that are details of something else
_DETAILS = {
    "deepspeed_": _BY_LAUNCHER,
    "fp8_": "accel has no settings for fp8 yet",
    "megatron_lm_": _MEGATRON,
}


@final
class AccelerateOption(click.Option):
    """A flag that sets nothing here. A value that asks for something is noted as a problem.

    Args:
        flag: The flag, with = after it if it takes a value, and then a value that asks for nothing.
        why: Why it is not supported; empty for a flag that is ignored.
        renamed: The option that does its work here.
    """

    def __init__(self, flag: str, *, why: str = "", renamed: str = "") -> None:
        self.why, self.renamed = why, renamed
        self.flag, takes_value, self._quiet = flag.partition("=")
        name = f"accelerate_{self.flag.lstrip('-')}"
        super().__init__(
            [name, self.flag],
            is_flag=not takes_value,
            hidden=True,
            expose_value=False,
            default=None,
            callback=self._check,
        )

    def _check(self, ctx: click.Context, option: click.Parameter, value: object) -> None:
        if value is not None and (problem := self.problem(value, ctx.command_path)) is not None:
            ctx.obj.problems.append(problem)

    def problem(self, value: object, command: str) -> str | None:
        """Return what stands against a value of this flag of a command, or None."""
        shown = self.flag if self.is_flag else f"{self.flag} {value}"
        if self.renamed:
            return f"{shown} is not an option of {command}: here it is {self.renamed}"
        if self.why and value != self._quiet and not asks_nothing(value):
            return f"{shown} is not supported: {self.why}; leave it out"
        return None


ACCELERATE_OPTIONS = (
    *(AccelerateOption(flag) for flag in _IGNORED.split()),
    *(AccelerateOption(flag, why=why) for why, flags in _UNSUPPORTED.items() for flag in flags.split()),
    *(AccelerateOption(flag, renamed=own) for flag, own in _RENAMED.items()),
)


def unknown_flag(error: click.NoSuchOption, ctx: click.Context) -> str:
    """Return the problem with a flag that the command of a context does not have."""
    flag = error.option_name
    details = next((why for starts, why in _DETAILS.items() if flag.lstrip("-").startswith(starts)), None)
    if details is not None:
        return f"{flag} is not supported: {details}; leave it out"
    own = [option for option in ctx.command.params if not isinstance(option, AccelerateOption)]
    # the dashes, which all flags have, make none alike
    known = {name.lstrip("-"): name for option in own for name in (*option.opts, *option.secondary_opts)}
    near = suggest(flag.lstrip("-"), known, likeness=0.72)
    meant = f"; did you mean {known[near]}?" if near is not None else ""
    after = "; options for the script come after the script" if "words" in known else ""
    return f"{flag} is not an option of {ctx.command_path}{meant} (see {ctx.command_path} --help{after})"
