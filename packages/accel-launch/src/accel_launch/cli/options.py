"""The launch options, each declared once: parser, config reader, variables, help and completion come from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import click
from click.core import ParameterSource

from accel_launch.cli.option_types import (
    COUNT,
    DEVICES,
    FOLDER,
    HOST,
    NUMBER,
    PAIRS,
    PATH,
    PORT,
    SWITCH,
    OptionType,
    one_of,
)


@final
class LaunchOption(click.Option):
    """One launch option: its flags, its type, and its names in a config file (`key`) and in the environment.

    The end of `about` says what holds if nobody sets it. With `key=None` no file and no variable can set it. A switch
    that a file can set has a flag that unsets it. Every long flag may be written with dashes.
    """

    def __init__(self, *flags: str, type: OptionType, about: str, key: str | None = "", **more: Any) -> None:
        self.flags, self.kind, self.about = flags, type, about
        name = more.pop("name", flags[-1][2:])
        self.key = key if key != "" else name
        variable = more.pop("variable", f"ACCEL_{self.key.upper()}" if self.key else None)
        self.off = f"--no_{flags[-1][2:]}" if type is SWITCH and self.key else ""
        off = _spellings((self.off,)) if self.off else []
        declared = [name, *_spellings(flags), *(f" /{flag}" for flag in off)]
        switch = {"type": click.BOOL} if type is SWITCH else {"type": type, "multiple": type is PAIRS}
        super().__init__(declared, is_flag=type is SWITCH, envvar=variable, default=None, help=about, **switch, **more)

    @property
    def preset(self) -> str:
        """What holds if nobody sets it, in the words of its help; empty if its value says all."""
        return self.about.partition(" Default: ")[2].removesuffix(".")

    def words(self, value: object) -> list[str]:
        """The flag that gives the option a value."""
        if self.kind is SWITCH:
            return [self.flags[-1]] if value else [self.off] if self.off else []
        return [self.flags[-1], str(value)]

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The value of its variable in the environment that is read; empty is not set."""
        environ: Mapping[str, str] = ctx.obj.environ
        word = environ.get(str(self.envvar), "").strip() if self.envvar else ""
        return word or None

    def handle_parse_result(self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]) -> Any:
        """Reads its value; what is wrong with it is noted, so that all that is wrong can be told at once."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as error:
            source = ctx.get_parameter_source(str(self.name))
            word = ctx.obj.environ.get(str(self.envvar), "").strip()
            expected, _, found = error.message.partition(", found ")
            expected = f"expected {self.kind.expected}"
            where = f"{self.envvar}={word!r} in the environment" if source is ParameterSource.ENVIRONMENT else None
            if found.strip("'") in ctx.obj.flags and where is None:
                kind = expected.removeprefix("expected ")
                ctx.obj.problems.append(
                    f"{self.flags[0]} needs a value ({kind}), found the option {found.strip(chr(39))}"
                )
            else:
                ctx.obj.problems.append(f"{where or f'{self.flags[0]} {found}'}: {expected}")
            ctx.params[str(self.name)] = None
            return None, args

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Its line in the help: one spelling of each flag, what it does, and where else it may be set."""
        if self.hidden:
            return None
        flags = ", ".join([*self.flags, *([self.off] if self.off else [])])
        places = [f"file: {self.key}"] if self.key else []
        places += [f"variable: {self.envvar}"] if self.envvar else []
        value = f" {self.kind.metavar}" if self.kind.metavar else ""
        also = f" [{'; '.join(places)}]" if places else ""
        return f"{flags}{value}", f"{self.about}{also}"


def _spellings(flags: tuple[str, ...]) -> list[str]:
    dashed = [f"--{flag[2:].replace('_', '-')}" for flag in flags if "_" in flag]
    return [*flags, *dashed]


OPTIONS: tuple[LaunchOption, ...] = (
    LaunchOption(
        *("-n", "--num_processes"),
        type=COUNT,
        about="How many processes to start, on all machines together. Default: one for each accelerator; one on each"
        " machine where there is none.",
    ),
    LaunchOption("--cpu", type=SWITCH, key="use_cpu", about="Compute on the CPU, even where there are accelerators."),
    LaunchOption(
        "--gpu_ids",
        type=DEVICES,
        about="Which GPUs to use: numbers such as 0,1, or all. Default: those that can be seen.",
    ),
    LaunchOption(
        "--mixed_precision",
        type=one_of("no", "bf16", "fp16", "fp8"),
        about="The precision in which an Accelerator computes, unless the script says otherwise. Default: no.",
    ),
    LaunchOption("--fp16", type=SWITCH, key=None, about="Short for --mixed_precision fp16."),
    LaunchOption(
        "--gradient_accumulation_steps",
        type=COUNT,
        about="Batches for each step of the optimizer, unless the script says otherwise. Default: 1.",
    ),
    LaunchOption(
        "--num_cpu_threads_per_process",
        type=COUNT,
        about="OMP_NUM_THREADS of each process. Default: cores divided by processes, where there are several.",
    ),
    LaunchOption(
        "--enable_cpu_affinity",
        type=SWITCH,
        about="Bind each process to the cores next to its GPU, or to its share of the cores.",
    ),
    LaunchOption(
        "--num_machines",
        type=COUNT,
        about="How many machines take part; accel launch is run on each, with the same options. Default: 1, or the"
        " nodes of the SLURM step.",
    ),
    LaunchOption(
        "--machine_rank",
        type=NUMBER,
        about="Which of them this one is: 0 is the machine where all meet. Default: as SLURM says.",
    ),
    LaunchOption(
        "--main_process_ip",
        type=HOST,
        about="The machine of rank 0, as the others can reach it. Default: the first host of the SLURM step.",
    ),
    LaunchOption(
        "--main_process_port",
        type=PORT,
        about="The port there at which machines meet. On one machine it has no meaning: the system gives a free one."
        " Default: 29500, or one made from the numbers of the SLURM step.",
    ),
    LaunchOption(
        "--rdzv_backend",
        type=one_of("static", "c10d"),
        about="How machines meet, by torch's elastic agent: static, at ranks that are given; or c10d, which gives ranks"
        " and goes on when a machine is replaced. Default: static.",
    ),
    LaunchOption(
        "--join_timeout",
        type=COUNT,
        about="Seconds that machines wait for each other at the start. Default: 300.",
    ),
    LaunchOption(
        "--log_dir",
        type=FOLDER,
        about="Keep what each process prints, in a file for each rank in a new folder below this one."
        " Default: nowhere.",
    ),
    LaunchOption(
        *("-t", "--tee"),
        type=one_of("0", "1", "2", "3"),
        about="What of it is shown as well: 0 nothing, 1 the standard output, 2 errors, 3 both. Default: 3.",
    ),
    LaunchOption(
        "--grace_period",
        type=COUNT,
        about="Seconds that processes have to save and to end after a signal from outside."
        " Default: 30, after Ctrl-C 4.",
    ),
    LaunchOption(
        "--max_restarts",
        type=NUMBER,
        about="How often to start all processes again after one has failed, since the last checkpoint. Default: never.",
    ),
    LaunchOption(
        "--config_file",
        type=PATH,
        key=None,
        variable="ACCEL_CONFIG_FILE",
        is_eager=True,
        about="A YAML or JSON file of settings. Default: default_config.yaml in the config folder, where it exists.",
    ),
    LaunchOption(
        "--explain",
        type=SWITCH,
        key=None,
        about="Print each setting with its origin, and the machine that was found, before the start.",
    ),
    LaunchOption(
        "--dry_run",
        type=SWITCH,
        key=None,
        about="Print the processes that would be started, with their environments, and start none.",
    ),
    LaunchOption(
        "--submit",
        type=one_of("slurm", "sagemaker", "kubernetes"),
        key=None,
        about="Write the job for this queue, and submit it where its client is installed, instead of starting it here.",
    ),
    LaunchOption(
        "--submit_options",
        type=PAIRS,
        about="What the queue is to know, such as partition=gpu,time=02:00:00; see docs/launching.md.",
    ),
    LaunchOption(
        "--submit_file",
        type=PATH,
        key=None,
        about="Where to write the job. Default: accel.sbatch, accel-sagemaker.json or accel-job.yaml.",
    ),
    LaunchOption(*("-m", "--module"), type=SWITCH, key=None, about="SCRIPT is the name of a module, as in python -m."),
    LaunchOption("--no_python", type=SWITCH, key=None, about="SCRIPT is a program, not a Python file."),
)

BY_NAME: dict[str, LaunchOption] = {str(option.name): option for option in OPTIONS}
BY_KEY: dict[str, LaunchOption] = {option.key: option for option in OPTIONS if option.key}
