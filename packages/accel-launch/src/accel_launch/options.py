"""The launch options, each declared once: the parser, the config reader and the help are made from this table."""

from collections.abc import Iterator
from dataclasses import dataclass

from accel_launch.kinds import COUNT, DEVICES, FOLDER, HOST, NUMBER, PAIRS, PATH, PORT, SWITCH, Kind, Value, one_of


@dataclass(frozen=True, slots=True)
class Option:
    """One launch option: its flags, its kind, and where else it may be set.

    The end of `help` says what holds where nobody sets it.
    `key` is its name in a config file, `variable` its name in the environment; None: cannot be set there.
    `stands_for` makes the flag a short form of another option with a fixed value.
    """

    name: str
    flags: tuple[str, ...]
    kind: Kind
    help: str
    key: str | None = None
    variable: str | None = None
    stands_for: tuple[str, Value] | None = None

    @property
    def preset(self) -> str:
        """What holds where nobody sets it, in the words of its help; empty where its value says all."""
        return self.help.partition(" Default: ")[2].removesuffix(".")

    @property
    def on(self) -> tuple[str, ...]:
        """Every spelling that sets the option."""
        return tuple(_spellings(self.flags))

    @property
    def off(self) -> tuple[str, ...]:
        """Every spelling that unsets the option: there is one for each switch that a config file could have set."""
        if self.kind.takes_value or self.key is None:
            return ()
        return tuple(_spellings(tuple(f"--no_{flag[2:]}" for flag in self.flags if flag.startswith("--"))))


def _spellings(flags: tuple[str, ...]) -> Iterator[str]:
    for flag in flags:
        yield flag
        if flag.startswith("--") and "_" in flag:
            yield "--" + flag[2:].replace("_", "-")


OPTIONS: tuple[Option, ...] = (
    Option(
        name="num_processes",
        flags=("-n", "--num_processes"),
        kind=COUNT,
        help="How many processes to start, on all machines together. Default: one for each accelerator; one on each"
        " machine where there is none.",
        key="num_processes",
        variable="ACCEL_NUM_PROCESSES",
    ),
    Option(
        name="cpu",
        flags=("--cpu",),
        kind=SWITCH,
        help="Compute on the CPU, even where there are accelerators.",
        key="use_cpu",
        variable="ACCEL_USE_CPU",
    ),
    Option(
        name="gpu_ids",
        flags=("--gpu_ids",),
        kind=DEVICES,
        help="Which GPUs to use: numbers such as 0,1, or all. Default: those that can be seen.",
        key="gpu_ids",
        variable="ACCEL_GPU_IDS",
    ),
    Option(
        name="mixed_precision",
        flags=("--mixed_precision",),
        kind=one_of("no", "bf16", "fp16", "fp8"),
        help="The precision in which an Accelerator computes, unless the script says otherwise. Default: no.",
        key="mixed_precision",
        variable="ACCEL_MIXED_PRECISION",
    ),
    Option(
        name="fp16",
        flags=("--fp16",),
        kind=SWITCH,
        help="Short for --mixed_precision fp16.",
        stands_for=("mixed_precision", "fp16"),
    ),
    Option(
        name="gradient_accumulation_steps",
        flags=("--gradient_accumulation_steps",),
        kind=COUNT,
        help="Batches for each step of the optimizer, unless the script says otherwise. Default: 1.",
        key="gradient_accumulation_steps",
        variable="ACCEL_GRADIENT_ACCUMULATION_STEPS",
    ),
    Option(
        name="num_cpu_threads_per_process",
        flags=("--num_cpu_threads_per_process",),
        kind=COUNT,
        help="OMP_NUM_THREADS of each process. Default: cores divided by processes, where there are several.",
        key="num_cpu_threads_per_process",
        variable="ACCEL_NUM_CPU_THREADS_PER_PROCESS",
    ),
    Option(
        name="enable_cpu_affinity",
        flags=("--enable_cpu_affinity",),
        kind=SWITCH,
        help="Bind each process to the cores next to its GPU, or to its share of the cores.",
        key="enable_cpu_affinity",
        variable="ACCEL_ENABLE_CPU_AFFINITY",
    ),
    Option(
        name="num_machines",
        flags=("--num_machines",),
        kind=COUNT,
        help="How many machines take part; accel launch is run on each, with the same options. Default: 1, or the nodes"
        " of the SLURM step.",
        key="num_machines",
        variable="ACCEL_NUM_MACHINES",
    ),
    Option(
        name="machine_rank",
        flags=("--machine_rank",),
        kind=NUMBER,
        help="Which of them this one is: 0 is the machine where all meet. Default: as SLURM says.",
        key="machine_rank",
        variable="ACCEL_MACHINE_RANK",
    ),
    Option(
        name="main_process_ip",
        flags=("--main_process_ip",),
        kind=HOST,
        help="The machine of rank 0, as the others can reach it. Default: the first host of the SLURM step.",
        key="main_process_ip",
        variable="ACCEL_MAIN_PROCESS_IP",
    ),
    Option(
        name="main_process_port",
        flags=("--main_process_port",),
        kind=PORT,
        help="The port there at which machines meet. On one machine it has no meaning: the system gives a free one."
        " Default: 29500, or one made from the numbers of the SLURM step.",
        key="main_process_port",
        variable="ACCEL_MAIN_PROCESS_PORT",
    ),
    Option(
        name="rdzv_backend",
        flags=("--rdzv_backend",),
        kind=one_of("static", "c10d"),
        help="How machines meet: static, at ranks that are given; or c10d, by torch's elastic agent, which gives ranks"
        " and goes on when a machine is replaced. Default: static.",
        key="rdzv_backend",
        variable="ACCEL_RDZV_BACKEND",
    ),
    Option(
        name="join_timeout",
        flags=("--join_timeout",),
        kind=COUNT,
        help="Seconds that machines wait for each other at the start. Default: 300.",
        key="join_timeout",
        variable="ACCEL_JOIN_TIMEOUT",
    ),
    Option(
        name="log_dir",
        flags=("--log_dir",),
        kind=FOLDER,
        help="Keep what each process prints, in a file for each rank in a new folder below this one. Default: nowhere.",
        key="log_dir",
        variable="ACCEL_LOG_DIR",
    ),
    Option(
        name="tee",
        flags=("-t", "--tee"),
        kind=one_of("0", "1", "2", "3"),
        help="What of it is shown as well: 0 nothing, 1 the standard output, 2 errors, 3 both. Default: 3.",
        key="tee",
        variable="ACCEL_TEE",
    ),
    Option(
        name="grace_period",
        flags=("--grace_period",),
        kind=COUNT,
        help="Seconds that processes have to save and to end after a signal from outside. Default: 30, after Ctrl-C 4.",
        key="grace_period",
        variable="ACCEL_GRACE_PERIOD",
    ),
    Option(
        name="max_restarts",
        flags=("--max_restarts",),
        kind=NUMBER,
        help="How often to start all processes again after one has failed, since the last checkpoint. Default: never.",
        key="max_restarts",
        variable="ACCEL_MAX_RESTARTS",
    ),
    Option(
        name="config_file",
        flags=("--config_file",),
        kind=PATH,
        help="A YAML or JSON file of settings. Default: default_config.yaml in the config folder, where it exists.",
        variable="ACCEL_CONFIG_FILE",
    ),
    Option(
        name="explain",
        flags=("--explain",),
        kind=SWITCH,
        help="Print each setting with its origin, and the machine that was found, before the start.",
    ),
    Option(
        name="dry_run",
        flags=("--dry_run",),
        kind=SWITCH,
        help="Print the processes that would be started, with their environments, and start none.",
    ),
    Option(
        name="submit",
        flags=("--submit",),
        kind=one_of("slurm", "sagemaker", "kubernetes"),
        help="Write the job for this queue, and submit it where its client is installed, instead of starting it here.",
    ),
    Option(
        name="submit_options",
        flags=("--submit_options",),
        kind=PAIRS,
        help="What the queue is to know, such as partition=gpu,time=02:00:00; see docs/launching.md.",
        key="submit_options",
        variable="ACCEL_SUBMIT_OPTIONS",
    ),
    Option(
        name="submit_file",
        flags=("--submit_file",),
        kind=PATH,
        help="Where to write the job. Default: accel.sbatch, accel-sagemaker.json or accel-job.yaml.",
    ),
    Option(
        name="module",
        flags=("-m", "--module"),
        kind=SWITCH,
        help="SCRIPT is the name of a module, as in python -m.",
    ),
    Option(
        name="no_python",
        flags=("--no_python",),
        kind=SWITCH,
        help="SCRIPT is a program, not a Python file.",
    ),
)

BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
BY_KEY: dict[str, Option] = {option.key: option for option in OPTIONS if option.key is not None}
BY_FLAG: dict[str, tuple[Option, bool]] = {
    **{flag: (option, True) for option in OPTIONS for flag in option.on},
    **{flag: (option, False) for option in OPTIONS for flag in option.off},
}
