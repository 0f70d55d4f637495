"""Declare the launch options once, for parser, config reader, variables, help, completion and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import click
from click.core import ParameterSource

from accel_launch.cli.entry_option import with_entries
from accel_launch.cli.launch_option import LaunchOption
from accel_launch.cli.option_types import (
    COUNT,
    DEVICES,
    FILE,
    FOLDER,
    HOST,
    INTERVAL,
    NUMBER,
    PAIRS,
    PORT,
    SWITCH,
)
from accel_launch.job.schedulers import BROUGHT

STATIC, C10D = "static", "c10d"
#: how a value came, in words
ORIGINS = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "config file",
    ParameterSource.DEFAULT: "default",
}


def _setting(type: click.ParamType, about: str, *, default: object = None, **more: Any) -> Any:  # type: ignore[type-arg] # as in OptionType
    """Return a field of the settings, with the declaration of the option of the same name."""
    preset = False if default is None and type is SWITCH else default
    return field(default=preset, metadata={"type": type, "about": about, **more})


def _read_config_file(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Read the config file before other options, as its values become defaults."""
    from accel_launch.config.config_file import read_defaults

    if not ctx.resilient_parsing:
        ctx.default_map = read_defaults(value, ctx.obj)
    return value


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """A value for every launch option. `origins` has the origin of each value that is set."""

    num_processes: int | None = _setting(
        COUNT,
        "How many processes to start, on all machines together. Default: one for each accelerator; one on each"
        " machine without accelerators.",
        short=["-n"],
    )
    cpu: bool = _setting(SWITCH, "Compute on the CPU, even if there are accelerators.", key="use_cpu")
    gpu_ids: str | None = _setting(
        DEVICES, "Which GPUs to use: numbers such as 0,1, or all. Default: the visible GPUs."
    )
    num_cpu_threads_per_process: int | None = _setting(
        COUNT, "OMP_NUM_THREADS of each process. Default: cores divided by processes, if there are several."
    )
    enable_cpu_affinity: bool = _setting(
        SWITCH, "Bind each process to the cores next to its GPU, or to its share of the cores."
    )
    mixed_precision: str | None = _setting(
        click.Choice(("no", "bf16", "fp16", "fp8")),
        "The precision in which an Accelerator computes, unless the script says otherwise. Default: no.",
    )
    fp16: bool = _setting(SWITCH, "Short for --mixed_precision fp16.", key=None)
    gradient_accumulation_steps: int | None = _setting(
        COUNT, "Batches for each step of the optimizer, unless the script says otherwise. Default: 1."
    )
    use_fsdp: bool = _setting(
        SWITCH, "Shard models over the processes, by torch's fully_shard, unless the script says otherwise."
    )
    fsdp_config: Mapping[str, str] | None = _setting(
        PAIRS,
        "How models are sharded, such as reshard_after_forward=false,min_num_params=1000; --fsdp_NAME VALUE gives one.",
        callback=with_entries,
    )
    use_deepspeed: bool = _setting(
        SWITCH, "Train by DeepSpeed's engine, which has to be installed, unless the script says otherwise."
    )
    deepspeed_config: Mapping[str, str] | None = _setting(
        PAIRS,
        "What DeepSpeed does, such as zero_stage=3,deepspeed_config_file=ds.json; --zero_stage 3 gives one.",
        callback=with_entries,
    )
    parallelism_config: Mapping[str, str] | None = _setting(
        PAIRS,
        "How processes share the work: dp_replicate_size, dp_shard_size, tp_size, whose product is their number;"
        " --parallelism_config_NAME VALUE gives one.",
        callback=with_entries,
    )
    dynamo_config: Mapping[str, str] | None = _setting(
        PAIRS,
        "How torch.compile compiles models, unless the script says otherwise, such as"
        " backend=inductor,use_regional_compilation=true; --dynamo_backend inductor gives one.",
        callback=with_entries,
    )
    num_machines: int | None = _setting(
        COUNT,
        "How many machines take part; run accel launch on each, with the same options. Default: 1, or the nodes of the"
        " SLURM step.",
    )
    machine_rank: int | None = _setting(
        NUMBER, "The number of this machine; all machines meet at machine 0. Default: the number that SLURM gives."
    )
    main_process_ip: str | None = _setting(
        HOST, "The address of machine 0, as the others can reach it. Default: the first host of the SLURM step."
    )
    main_process_port: int | None = _setting(
        PORT,
        "The port of machine 0 at which machines meet. On one machine it has no effect: the system gives a free port."
        " Default: 29500, or a port made from the numbers of the SLURM step.",
    )
    rdzv_backend: str = _setting(
        click.Choice((STATIC, C10D)),
        "How machines meet: static, at given ranks; or c10d, which gives ranks and goes on"
        " when a machine is replaced. Default: static.",
        default=STATIC,
    )
    min_machines: int | None = _setting(
        COUNT,
        "How many machines go on if others are lost, and none has come in their place within --join_timeout; needs"
        " --rdzv_backend c10d. Of two machines either may be lost, of more any but the first. Default: all.",
    )
    join_timeout: int = _setting(
        COUNT, "Seconds that machines wait for each other at the start. Default: 300.", default=300
    )
    log_dir: str | None = _setting(
        FOLDER,
        "Keep the output of each process, in files for each rank in a new folder inside this folder. Default: nowhere.",
    )
    tee: str = _setting(
        click.Choice(("0", "1", "2", "3")),
        "The output to show if --log_dir keeps it: 0 nothing, 1 the standard output, 2 errors, 3 both. Default: 3.",
        default="3",
        short=["-t"],
    )
    grace_period: int | None = _setting(
        COUNT,
        "Seconds that processes have to save and to end after a signal from outside. Default: 30, after Ctrl-C 4.",
    )
    max_restarts: int = _setting(
        NUMBER,
        "How often to start all processes again after a failure, counted since the last checkpoint. To go on from it,"
        " the script has to call accelerator.resume(). Default: never.",
        default=0,
    )
    memory_checkpoint_every: str | None = _setting(
        INTERVAL,
        "Keep a checkpoint in memory, which outlives the processes, each so many optimizer steps, or seconds such as"
        " 30s. To go on from it, the script has to call accelerator.resume(). Default: what the script says.",
    )
    memory_checkpoint_dir: str | None = _setting(
        FOLDER,
        "Where these checkpoints are kept: a tmpfs, or a folder on a disk of this machine if memory is too small."
        " Default: /dev/shm.",
    )
    config_file: str | None = _setting(
        FILE,
        "A YAML or JSON file of settings. Default: default_config.yaml in the config folder, if it exists.",
        key=None,
        variable="ACCEL_CONFIG_FILE",
        is_eager=True,
        callback=_read_config_file,
    )
    explain: bool = _setting(
        SWITCH, "Print each setting with its origin, and the machine as found, before the start.", key=None
    )
    dry_run: bool = _setting(
        SWITCH, "Print the processes that would start, with their environments, and start none.", key=None
    )
    submit: str | None = _setting(
        click.STRING,
        "Write a job for this scheduler, and submit it if its client is installed, instead of starting it here.",
        key=None,
        metavar=f"[{'|'.join(BROUGHT)}]",
        shell_complete=lambda ctx, option, word: [name for name in BROUGHT if name.startswith(word)],
    )
    submit_options: Mapping[str, str] | None = _setting(
        PAIRS,
        "Options of the scheduler: those of sbatch, such as partition=gpu,time=02:00:00; for kubernetes image=IMAGE;"
        " for sagemaker role=ARN,instance_type=TYPE. An error lists those that are missing.",
        callback=with_entries,
    )
    kind: str | None = _setting(
        click.STRING,
        "What to write for --submit kubernetes: job, or trainjob for a TrainJob of Kubeflow Trainer. Default: job.",
        key=None,
        metavar="[job|trainjob]",
    )
    submit_file: str | None = _setting(
        FILE, "Where to write the job. Default: accel.sbatch, accel-sagemaker.json or accel-job.yaml.", key=None
    )
    as_accelerate: bool = _setting(
        SWITCH, "Answer `import accelerate` of the script and of its libraries by accel; needs package accel-compat."
    )
    module: bool = _setting(SWITCH, "SCRIPT is the name of a module, as in python -m.", short=["-m"], key=None)
    no_python: bool = _setting(SWITCH, "SCRIPT is a program, not a Python file.", key=None)
    origins: Mapping[str, ParameterSource] = field(default_factory=dict)

    def said(self, name: str) -> bool:
        """Return True if a flag, a variable or a file has set the option."""
        return name in self.origins

    def origin(self, name: str) -> ParameterSource:
        """Return the origin of an option's value."""
        return self.origins.get(name, ParameterSource.DEFAULT)

    def is_flag(self, name: str) -> bool:
        """Return True if a flag has set the option."""
        return self.origin(name) is ParameterSource.COMMANDLINE

    def with_flags(self, **values: Any) -> LaunchSettings:
        """Return these settings with values that flags would have given."""
        return replace(self, **values, origins={**self.origins, **dict.fromkeys(values, ParameterSource.COMMANDLINE)})


BY_NAME: dict[str, LaunchOption] = {
    setting.name: LaunchOption(f"--{setting.name}", **setting.metadata)
    for setting in fields(LaunchSettings)
    if setting.metadata
}
OPTIONS = tuple(BY_NAME.values())
BY_KEY: dict[str, LaunchOption] = {option.key: option for option in OPTIONS if option.key}
