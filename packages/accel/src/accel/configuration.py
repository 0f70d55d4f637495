"""The settings that scripts pass as objects."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from accel_ops.fingerprint import Check
from accel_state.save_interval import EXPECTED, SaveInterval


@dataclass(slots=True)
class DataLoaderConfiguration:
    """The way in which prepared loaders share data.

    Fields may be set until an Accelerator is made with it, which keeps a copy.

    Args:
        split_batches: The batch size of a loader is that of the whole job, not of one process.
        dispatch_batches: True: the main process reads for all. False: each process reads, and a stream comes in one
            order on all. None: the main process reads for all if a stream has neither shards nor a `generator`.
        even_batches: Every process gets as many batches as the others. It counts if `ending` is None.
        use_seedable_sampler: Draw shuffled orders from a seed and the number of the epoch.
        data_seed: That seed; None for the one that torch has.
        non_blocking: Copy batches to the device while the step before computes.
        use_stateful_dataloader: Prepared loaders are instances of torchdata's `StatefulDataLoader` too, if torchdata is
            installed; every prepared loader has a state in any case.
        ending: What happens to the samples at the end that do not fill a batch of every process. "pad" repeats samples
            from the start of the epoch, so that all processes get equally many full batches. "exact" divides them
            evenly, into shorter batches; a process for which none is left gets a sample that `gather_for_metrics`
            leaves out. "drop" leaves them out. "join" lets processes have different numbers of batches, for training
            inside `join_uneven_inputs`. None is "drop" if the loader has `drop_last`, and otherwise "pad", or "join" if
            `even_batches` is False.
        check_datasets: Compare the data sets of all processes: True refuses different ones, but only warns if nothing
            differs except values of tensors. "error" refuses these too, "warn" warns, False does not look.
        already_sharded: The data set of each process has its own samples already.
        consumption_log: A folder in which each process notes the samples that it was served.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False
    ending: str | None = None
    check_datasets: Check = True
    already_sharded: bool = False
    consumption_log: str | Path | None = None


@dataclass
class ProjectConfiguration:
    """The folders that a project writes into, and the names of its checkpoints.

    Args:
        project_dir: The folder of the project.
        logging_dir: The folder of its logs; None for the same.
        automatic_checkpoint_naming: Name checkpoints `checkpoints/checkpoint_<n>` in `project_dir`, where
            `accelerator.resume` finds them. `save_state` without a folder needs it.
        total_limit: How many checkpoints to keep, the newest; None for all.
        iteration: The lowest number of a checkpoint. Numbers go on from what is there.
        save_on_each_node: Write a checkpoint on every machine, for disks that machines do not share.
        stop_signals: Names of signals that are noted for `accelerator.stop_requested` from the start, and do not end
            the process, such as ("SIGTERM", "SIGUSR1"). By default these two are noted from the first call of
            `stop_requested` on.
        memory_checkpoint_every: How often a checkpoint is kept in memory, which outlives the processes: each so many
            optimizer steps, or seconds as text, such as "30s". `resume` goes on from the newest of them and of those on
            disk. `accel launch` has to start the script. None for what its `--memory_checkpoint_every` says.

    Raises:
        ValueError: `total_limit` is neither None nor a whole number of at least 1, `iteration` no whole number of at
            least 0, or `memory_checkpoint_every` none of these.
    """

    project_dir: str | Path | None = None
    logging_dir: str | Path | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False
    stop_signals: tuple[str, ...] = ()
    memory_checkpoint_every: int | str | None = None

    def __post_init__(self) -> None:
        limit = [] if self.total_limit is None else wrong_number("total_limit", self.total_limit)
        problems = [f"{problem}, or None" for problem in limit]
        problems += wrong_number("iteration", self.iteration, least=0)
        every = self.memory_checkpoint_every
        if every is not None and SaveInterval.of(every) is None:
            problems.append(f"memory_checkpoint_every={every!r}: expected {EXPECTED}, or None")
        if problems:
            raise ValueError("; ".join(f"ProjectConfiguration: {problem}" for problem in problems))
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | Path | None = None) -> None:
        """Set the folder of the project, and that of its logs if it has none, as absolute paths.

        A script may change its working directory later: folders stay where they were when they were given.
        """
        self.project_dir = _absolute(project_dir)
        self.logging_dir = self.project_dir if self.logging_dir is None else _absolute(self.logging_dir)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints that are named automatically: `checkpoints` in `project_dir`.

        Raises:
            ValueError: There is no `project_dir`.
        """
        if self.project_dir is None:
            raise ValueError(
                "checkpoints are named in project_dir/checkpoints, and there is no project_dir; pass"
                " Accelerator(project_dir=...), or save_state and load_state the path of a folder"
            )
        return Path(self.project_dir) / "checkpoints"


def _absolute(folder: str | Path | None) -> str | Path | None:
    if folder is None:
        return None
    absolute = Path(folder).absolute()
    return absolute if isinstance(folder, Path) else str(absolute)


@dataclass
class GradientAccumulationPlugin:
    """The way in which micro-batches form windows, each of which has one optimizer step.

    Args:
        num_steps: Micro-batches to an optimizer step; None for what the launcher says.
        adjust_scheduler: Has no effect; accepted so that scripts for Accelerate run. A prepared schedule advances at
            each optimizer step, by the number of processes unless the Accelerator has `scheduler_once_per_step=True`.
        sync_with_dataloader: False is `at_epoch_end="carry"`.
        sync_each_batch: Exchange gradients in each micro-batch. Sharded models do so anyway, but for their copies.
        at_epoch_end: The fate of a window that the last batch of a loader leaves short: "flush" steps with it, "drop"
            throws it away, "carry" resumes it in the next epoch. None is "flush".

    Raises:
        ValueError: `num_steps` is no whole number of at least 1, `at_epoch_end` has another value, or it contradicts
            `sync_with_dataloader=False`. The message lists all.
    """

    num_steps: int | None = None
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False
    at_epoch_end: str | None = None

    def __post_init__(self) -> None:
        problems = self.problems()
        if problems:
            raise ValueError("; ".join(problems))

    def to_kwargs(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}

    @property
    def end(self) -> str:
        """The fate of a window that is left short, from both fields that say so."""
        return self.at_epoch_end or ("flush" if self.sync_with_dataloader else "carry")

    def problems(self) -> list[str]:
        """Return what is wrong with it, in words."""
        problems = [] if self.num_steps is None else wrong_number("num_steps", self.num_steps)
        if self.end not in ("flush", "drop", "carry"):
            problems.append(f'at_epoch_end={self.at_epoch_end!r}: expected "flush", "drop" or "carry"')
        elif not self.sync_with_dataloader and self.end != "carry":
            problems.append(
                f'sync_with_dataloader=False is at_epoch_end="carry", and {self.at_epoch_end!r} contradicts it'
            )
        return [f"GradientAccumulationPlugin: {problem}" for problem in problems]


def wrong_number(name: str, value: object, least: int = 1) -> list[str]:
    """Return what is wrong with an option that has to be a whole number.

    Args:
        name: The name of the option.
        value: The number.
        least: The least that it may be.
    """
    if type(value) is int and value >= least:
        return []
    return [f"{name}={value!r}: expected a whole number of at least {least}"]
