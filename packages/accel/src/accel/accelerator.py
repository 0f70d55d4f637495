"""The facade: one object that a training script talks to."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast, final, overload

from accel_amp import AcceleratedOptimizer, AcceleratedScheduler
from accel_checkpoint import save_object
from accel_data import Ending
from accel_parallel import FullyShardedDataParallelPlugin, ParallelismConfig, Strategy, StrategyOptions
from accel_parallel.choice import AUTO
from accel_state import AcceleratorState
from accel_state.environ import process_environ
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from accel.build import Components, build_components
from accel.checkpoint.checkpointer import Checkpointer
from accel.checkpoint.registry import CheckpointRegistry, LoadHook, SaveHook, add_hook
from accel.checkpoint.whole_weights import save_whole
from accel.compat.accelerate_attributes import AccelerateAttributes
from accel.compat.copied_accelerator import CopiedAccelerator
from accel.compilation import TorchDynamoPlugin
from accel.configuration import DataLoaderConfiguration, GradientAccumulationPlugin, ProjectConfiguration
from accel.handlers import KwargsHandler
from accel.preparation import Preparer
from accel.settings import resolve
from accel.step.accumulation import GradientAccumulation
from accel.tracking.calls import TrackerCalls
from accel.tracking.choice import LogWith
from accel.tracking.session import TrackingSession

A = TypeVar("A")
More = TypeVarTuple("More")
Module = TypeVar("Module", bound=nn.Module)


@final
class Accelerator(AccelerateAttributes, TrackerCalls):
    """Runs an ordinary PyTorch loop on any number of processes, devices and precisions.

    Collective: every process of the job must create one, and call what is marked so in like order.
    """

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int | None = None,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        rng_types: Iterable[str] | None = None,
        log_with: LogWith | Iterable[LogWith] | None = None,
        project_dir: str | Path | None = None,
        project_config: ProjectConfiguration | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Sequence[KwargsHandler] | None = None,
        dynamo_backend: str | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        *,
        fsdp_plugin: FullyShardedDataParallelPlugin | None = None,
        parallelism_config: ParallelismConfig | None = None,
        deepspeed_plugin: StrategyOptions | None = None,
        megatron_lm_plugin: None = None,
        fp16: bool = False,
        strategy: str | Strategy | None = AUTO,
        strategy_options: object = None,
        scheduler_once_per_step: bool = False,
    ) -> None:
        self.settings = resolve(process_environ(), locals())
        project = project_config or ProjectConfiguration()
        # also if a field was set after the configuration was made
        project.set_directories(project_dir if project.project_dir is None else project.project_dir)
        self._assemble(build_components(self.settings), project, log_with)

    def _assemble(
        self, components: Components, project: ProjectConfiguration, log_with: LogWith | Iterable[LogWith] | None
    ) -> None:
        self.components, self.project_configuration = components, project
        self._tracking = TrackingSession(log_with, project, device=self.device, main=bool(self.is_main_process))
        on_ready = self._tracking.prepared if self.observer is None else partial(self.observer.prepared, self)
        self._preparer = Preparer(self.components, self.settings, on_ready)
        self._gradients = GradientAccumulation(self.components, self._preparer)
        registry = CheckpointRegistry(self.components, self._preparer, self._gradients)
        self._checkpointer = Checkpointer(AcceleratorState(), registry, project, self._tracking)

    def __setstate__(self, copied: CopiedAccelerator) -> None:
        self.settings = copied.settings
        self._assemble(copied.components(build_components(self.settings)), copied.project, None)
        copied.hand_over(self._preparer)

    @overload
    def prepare(self, one: A, /, *, device_placement: Sequence[bool] | None = None) -> A: ...
    @overload
    def prepare(self, *objects: *More, device_placement: Sequence[bool] | None = None) -> tuple[*More]: ...
    # mypy does not see that *Any takes every *More
    def prepare(self, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any:  # type: ignore[misc]
        """The objects, ready for this run, in the order given; one object comes back by itself.

        Models, optimizers, loaders and schedulers are prepared; anything else comes back as it is.

        Raises: TypeError or ValueError for what cannot be prepared, in words.
        Collective: every process must call with like objects in like order.
        """
        if not objects:
            raise ValueError("prepare() needs at least one object: a model, an optimizer, a DataLoader or a scheduler")
        ready = self._preparer.prepare(objects, device_placement)
        return ready[0] if len(ready) == 1 else tuple(ready)

    def prepare_model(
        self, model: Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Module:
        """The model, ready; without the container that exchanges gradients in `evaluation_mode`. Collective."""
        return cast("Module", self._preparer.model(model, place=device_placement, evaluation=evaluation_mode))

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> AcceleratedOptimizer:
        """The optimizer, ready."""
        return self._preparer.optimizer(optimizer, place=device_placement)

    def prepare_data_loader(
        self, data_loader: DataLoader[A], device_placement: bool | None = None, *, ending: Ending | str | None = None
    ) -> DataLoader[A]:
        """The loader of this process. Collective."""
        return self._preparer.loader(data_loader, place=device_placement, ending=ending)

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """The scheduler, following its prepared optimizer."""
        return self._preparer.scheduler(scheduler)

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | Path,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> Path | None:
        """Writes the weights on the main process: the path to open them by; None on the others.

        Collective: every process must call, if the model is sharded; the main process gathers it piece by piece.
        """
        state = self.unwrap_model(model, keep_torch_compile=False).state_dict()
        return save_whole(state, save_directory, self, max_shard_size, safe_serialization=safe_serialization)

    def save(self, obj: Any, f: str | Path, safe_serialization: bool = False) -> None:
        """Writes an object on the main process: by torch.save, or a mapping of tensors as safetensors."""
        if self.is_main_process:
            save_object(obj, f, safe_serialization=safe_serialization)

    @property
    def save_iteration(self) -> int:
        """The number of the next checkpoint that is named automatically."""
        return self._checkpointer.next_number

    def register_for_checkpointing(self, *objects: Any, **named: Any) -> None:
        """Saves and loads these with everything else, by their `state_dict` and `load_state_dict`.

        Each is saved under a name: the keyword, or that of its class. What is saved is the main process's.

        Raises: ValueError that lists all objects without these methods, and names that are taken.
        """
        self._checkpointer.registry.register(objects, named)

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """Calls `hook(models, weights, folder)` before a checkpoint is written, on every process.

        What it writes into the folder becomes part of the checkpoint; weights that it takes out of the list are its own
        to write.
        """
        return add_hook(self._checkpointer.registry.save_hooks, hook)

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """Calls `hook(models, folder)` before a checkpoint is loaded, on every process.

        Models that it takes out of the list are its own to load.
        """
        return add_hook(self._checkpointer.registry.load_hooks, hook)

    def save_state(
        self,
        output_dir: str | Path | None = None,
        safe_serialization: bool = True,
        *,
        asynchronous: bool = False,
        max_shard_size: int | str = "10GB",
    ) -> Path:
        """The folder of a checkpoint of all that was prepared or registered: it is there whole, or not at all.

        With `asynchronous` training goes on when everything is copied in memory; errors of the writing come with the
        next call, or with `wait_for_checkpoint`.

        Raises: CheckpointError, on every process, if it could not be written; what was there before stays. ValueError
        without a folder.
        Collective: every process must call.
        """
        if not safe_serialization:
            warnings.warn(
                "save_state(safe_serialization=False): checkpoints are safetensors all the same", stacklevel=2
            )
        return self._checkpointer.save(output_dir, asynchronous=asynchronous, max_shard_size=max_shard_size)

    def wait_for_checkpoint(self) -> None:
        """Returns when the checkpoint that is being written in the background is on the disk.

        Raises: CheckpointError, on every process, if it could not be written.
        Collective: every process must call.
        """
        self._checkpointer.wait()

    def load_state(
        self,
        input_dir: str | Path | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        map_location: str | None = None,
    ) -> Path:
        """The folder of the checkpoint that everything goes on from; more or fewer processes may have written it.

        Without `input_dir` it is the newest whole one of the project. Its files are verified, and compared with what
        was prepared and registered, before anything is changed. State goes to where the objects are, whatever
        `map_location`.

        Raises: CheckpointError, on every process, that lists all that stands against it; TypeError for a map_location
        that is none.
        Collective: every process must call.
        """
        location = (load_kwargs or {}).get("map_location", map_location)
        if location not in (None, "cpu", "on_device"):
            raise TypeError(f'map_location={location!r}: expected None, "cpu" or "on_device"')
        return self._checkpointer.load(input_dir)

    def resume(self) -> Path | None:
        """The newest checkpoint of the project, from which everything goes on; None if there is none yet.

        Raises: ValueError without a project_dir; CheckpointError as `load_state`.
        Collective: every process must call.
        """
        return self._checkpointer.resume()

    def stop_requested(self) -> bool:
        """Whether a signal has asked any process of the job to stop: SIGTERM or SIGUSR1, or the `stop_signals`.

        Collective: every process must call, after the same optimizer step.
        """
        return self._checkpointer.signals.requested()

    def save_and_stop(self, output_dir: str | Path | None = None) -> NoReturn:
        """Writes a checkpoint, and ends the process with exit code 75: to go on, run the same command again.

        Raises: SystemExit; CheckpointError as `save_state`.
        Collective: every process must call.
        """
        self._checkpointer.save_and_stop(output_dir)

    def free_memory(self, *objects: Any) -> list[None]:
        """Forgets what was prepared and returns a None for each object, to assign to its name."""
        self._preparer.forget()
        self._gradients.forget()
        nothing: list[None] = [None] * len(objects)
        del objects
        gc.collect()
        self.run.device.release_memory()
        return nothing

    clear = free_memory
