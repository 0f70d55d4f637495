"""Settings that scripts pass as objects."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from accel_ops.fingerprint import Check


@dataclass(slots=True)
class DataLoaderConfiguration:
    """How prepared loaders share data; see `accel_data.prepare_data_loader` for each field.

    Fields may be set until an Accelerator is made with it, which keeps a copy. `use_stateful_dataloader` changes
    nothing: every prepared loader has `state_dict` and `load_state_dict`.
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
    """Where a project keeps what it writes, and how its checkpoints are called.

    With `automatic_checkpoint_naming` they are `checkpoints/checkpoint_<n>` in `project_dir`, numbered on from what is
    there, or from `iteration`; the newest `total_limit` are kept. `save_on_each_node` writes one on every machine, for
    disks that machines do not share. `stop_signals` are noted instead of ending the process, for
    `accelerator.stop_requested`.
    """

    project_dir: str | Path | None = None
    logging_dir: str | Path | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False
    stop_signals: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if self.total_limit is not None and (type(self.total_limit) is not int or self.total_limit < 1):
            problems.append(f"total_limit={self.total_limit!r}: expected a whole number of at least 1, or None")
        if type(self.iteration) is not int or self.iteration < 0:
            problems.append(f"iteration={self.iteration!r}: expected a whole number of at least 0")
        if problems:
            raise ValueError("; ".join(f"ProjectConfiguration: {problem}" for problem in problems))
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | Path | None = None) -> None:
        """Sets the folder of the project, and that of its logs where it has none of its own, as absolute paths.

        A script may change its working directory later: folders stay where they were when they were given.
        """
        self.project_dir = _absolute(project_dir)
        self.logging_dir = self.project_dir if self.logging_dir is None else _absolute(self.logging_dir)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints that are named here.

        Raises: ValueError without a project_dir.
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
    """How gradients gather over micro-batches.

    `at_epoch_end` says what becomes of a window that the last batch of a loader leaves short: "flush" steps with it,
    "drop" throws it away, "carry" goes on in the next epoch; `sync_with_dataloader=False` is "carry". With
    `sync_each_batch` gradients travel with each micro-batch, which needs less memory where parameters are sharded. A
    prepared schedule follows optimizer steps, whatever `adjust_scheduler` says.
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
        """The fields that differ from their defaults."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}

    @property
    def end(self) -> str:
        """What `at_epoch_end` comes to."""
        return self.at_epoch_end or ("flush" if self.sync_with_dataloader else "carry")

    def problems(self) -> list[str]:
        """What is wrong with it, in words."""
        problems = []
        if self.num_steps is not None and (type(self.num_steps) is not int or self.num_steps < 1):
            problems.append(f"num_steps={self.num_steps!r}: expected a whole number of at least 1")
        if self.end not in ("flush", "drop", "carry"):
            problems.append(f'at_epoch_end={self.at_epoch_end!r}: expected "flush", "drop" or "carry"')
        elif not self.sync_with_dataloader and self.end != "carry":
            problems.append(
                f'sync_with_dataloader=False is at_epoch_end="carry", and {self.at_epoch_end!r} contradicts it'
            )
        return [f"GradientAccumulationPlugin: {problem}" for problem in problems]
