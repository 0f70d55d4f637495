"""Attributes of an Accelerator that scripts and libraries for Accelerate read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from accel_amp import AcceleratedOptimizer, AcceleratedScheduler
from accel_parallel import StrategyOptions
from accel_parallel.choice import DEEPSPEED
from accel_state.environ import process_environ
from torch import nn
from torch.utils.data import DataLoader

from accel.compat.copied_accelerator import CopiedAccelerator
from accel.configuration import DataLoaderConfiguration, ProjectConfiguration
from accel.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
)
from accel.settings import of_loaders
from accel.step.training_step import TrainingStep


class AccelerateAttributes(TrainingStep):
    """What an Accelerator was asked for and has prepared, under the names of Accelerate."""

    project_configuration: ProjectConfiguration

    def __getstate__(self) -> CopiedAccelerator:
        # Processes, devices and threads belong to the run of the process that reads this.
        return CopiedAccelerator.of(self.settings, self.project_configuration, self.components, self._preparer)

    @property
    def project_dir(self) -> str | Path | None:
        """The folder of the project."""
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | Path | None:
        """The folder of the logs of the project."""
        return self.project_configuration.logging_dir

    @property
    def dataloader_config(self) -> DataLoaderConfiguration:
        """The configuration of loaders that are prepared from now on; its fields may be set."""
        return self.settings.data

    @dataloader_config.setter
    def dataloader_config(self, config: DataLoaderConfiguration) -> None:
        self.settings = self._preparer.settings = replace(self.settings, data=of_loaders(config, process_environ()))

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether shuffled orders are drawn from a seed and the number of the epoch."""
        return self.settings.data.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device while the step before computes."""
        return self.settings.data.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        """True: every prepared loader has a state."""
        return True

    @property
    def rng_types(self) -> list[str]:
        """The random generators that are made equal on all processes at the start of each pass."""
        return [kind.value for kind in self.settings.rng_types]

    @property
    def step_scheduler_with_optimizer(self) -> bool:
        """Whether prepared schedules follow optimizer steps."""
        return self.settings.step_scheduler_with_optimizer

    @property
    def should_save_model(self) -> bool:
        """Whether this process writes weights: of models that are whole, one process of each machine."""
        return self.settings.parallelism is not None or bool(self.is_local_main_process)

    @property
    def native_amp(self) -> bool:
        """Whether models compute in half precision by `torch.autocast`."""
        return self.components.policy.compute is not None

    @property
    def step(self) -> int:
        """The number of the current micro-batch in its window; may be set to 0, to begin a window."""
        return self.components.accumulation.position

    @step.setter
    def step(self, step: int) -> None:
        if step != 0:
            raise ValueError(f"accelerator.step = {step}: accumulate() counts; only 0 may be set, to begin a window")
        self.components.accumulation.reset()

    @property
    def multi_device(self) -> bool:
        """Whether several processes each have an accelerator."""
        return self.use_distributed and self.device.type != "cpu"

    @property
    def fp8_enabled(self) -> bool:
        """Whether linear layers compute in float8."""
        return self.mixed_precision == "fp8"

    @property
    def deepspeed_plugin(self) -> StrategyOptions | None:
        """The plugin by which DeepSpeed's engine trains; None without the engine."""
        return self.settings.options.get(DEEPSPEED)

    @property
    def autocast_handler(self) -> AutocastKwargs:
        """How `torch.autocast` is entered."""
        return self.settings.handlers.autocast

    @property
    def scaler_handler(self) -> GradScalerKwargs:
        """How the scale of the loss changes."""
        return self.settings.handlers.scaler

    @property
    def ddp_handler(self) -> DistributedDataParallelKwargs:
        """How DistributedDataParallel is built."""
        return self.settings.handlers.ddp

    @property
    def init_handler(self) -> InitProcessGroupKwargs:
        """How the process group is opened."""
        return self.settings.handlers.group

    @property
    def profile_handler(self) -> ProfileKwargs:
        """How `torch.profiler` is entered."""
        return self.settings.handlers.profile

    # Libraries read and change these lists in place of asking for what was prepared.

    @property
    def _models(self) -> list[nn.Module]:
        return self._preparer.models

    @property
    def _optimizers(self) -> list[AcceleratedOptimizer]:
        return self._preparer.optimizers

    @property
    def _schedulers(self) -> list[AcceleratedScheduler]:
        return self._preparer.schedulers

    @property
    def _dataloaders(self) -> list[DataLoader[Any]]:
        return self._preparer.loaders

    def verify_device_map(self, model: nn.Module) -> bool:
        """Whether a part of the model was put on several devices by a device map, which no prepared model may be."""
        maps = [vars(part).get("hf_device_map") for part in model.modules()]
        return any(len(set(placed.values())) > 1 for placed in maps if placed)
