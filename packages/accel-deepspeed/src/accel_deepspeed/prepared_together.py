"""Collect what a script prepares in one call: DeepSpeed's config is filled from it, and has to agree with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from accel_amp.optimizer_parameters import parameters_of
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from accel_deepspeed.stand_ins import DummyOptim, DummyScheduler


@final
@dataclass(frozen=True, slots=True)
class PreparedTogether:
    """The objects of one call of `prepare` that DeepSpeed has to know.

    Args:
        optimizers: The optimizers.
        schedule: The stand-in for a schedule, if any.
        batch_sizes: Samples in a batch of each loader.
    """

    optimizers: tuple[Optimizer, ...]
    schedule: DummyScheduler | None
    batch_sizes: tuple[int, ...]

    @classmethod
    def of(cls, objects: Sequence[Any]) -> PreparedTogether:
        """Return what DeepSpeed has to know of the objects."""
        sizes = [_batch_size(given) for given in objects if isinstance(given, DataLoader)]
        return cls(
            optimizers=tuple(given for given in objects if isinstance(given, Optimizer)),
            schedule=next((given for given in objects if isinstance(given, DummyScheduler)), None),
            batch_sizes=tuple(size for size in sizes if size is not None),
        )

    @property
    def has_stand_in(self) -> bool:
        """True if DeepSpeed is to make the optimizer."""
        return isinstance(self.optimizers[0], DummyOptim)

    @property
    def optimizer_values(self) -> Mapping[str, Any]:
        """The values of the stand-in for an optimizer."""
        return dict(self.optimizers[0].defaults) if self.has_stand_in else {}

    @property
    def schedule_values(self) -> Mapping[str, Any]:
        """The values of the stand-in for a schedule, and the learning rate that it rises to."""
        if self.schedule is None:
            return {}
        rate = self.optimizers[0].param_groups[0]["lr"]
        values = {"warmup_min_lr": 0.0, "warmup_max_lr": rate, "warmup_num_steps": self.schedule.warmup_num_steps}
        if self.schedule.total_num_steps is not None:
            values["total_num_steps"] = self.schedule.total_num_steps
        return values | self.schedule.kwargs

    def batch_size(self, *, smallest: bool) -> int | None:
        """Return the smallest or the largest batch of all loaders, or None without loaders."""
        return (min if smallest else max)(self.batch_sizes, default=None)

    def problems(self, model: nn.Module) -> list[str]:
        """Return why DeepSpeed cannot train the model with what was prepared beside it, in words."""
        lines = []
        if len(self.optimizers) != 1:
            lines.append(
                f"it needs the model and its optimizer in one call of prepare, found {len(self.optimizers)} optimizers"
            )
        own = {id(parameter) for parameter in model.parameters()}
        for optimizer in self.optimizers:
            if optimizer.state:
                name = type(optimizer).__name__
                lines.append(f"{name} has taken steps already, whose state DeepSpeed would not keep")
            strange = sum(id(parameter) not in own for parameter in parameters_of(optimizer))
            if strange:
                lines.append(f"{strange} parameters of the optimizer are not of the model")
        empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
        if empty:
            lines.append(
                f"{len(empty)} parameters are on the meta device, such as {empty[0]}: load weights before prepare, or"
                " build the model under deepspeed.zero.Init(config_dict_or_path=...)"
            )
        wide = [name for name, parameter in model.named_parameters() if parameter.dtype == torch.float64]
        if wide:
            lines.append(f"it would keep {len(wide)} float64 parameters in float32, such as {wide[0]}")
        return lines

    def problems_of_sections(self, config: Mapping[str, Any]) -> list[str]:
        """Return what sections of DeepSpeed's config conflict with the script's optimizer and schedule."""
        stands_for_callable = self.schedule is not None and self.schedule.lr_scheduler_callable is not None
        wrong = {
            'a DummyOptim stands for the section "optimizer", and there is none; add it': self.has_stand_in
            and "optimizer" not in config,
            'the section "optimizer", and an optimizer of the script: take the section out, or prepare a DummyOptim': (
                not self.has_stand_in and "optimizer" in config
            ),
            'the section "scheduler" needs a DummyScheduler in the same prepare; add it, or take the section out': (
                self.schedule is None and "scheduler" in config
            ),
            'the section "scheduler", and lr_scheduler_callable: say it once': stands_for_callable
            and "scheduler" in config,
        }
        return [line for line, is_wrong in wrong.items() if is_wrong]


def _batch_size(loader: DataLoader[Any]) -> int | None:
    """Return the samples of a batch, or None if the loader does not say."""
    size = loader.batch_size if loader.batch_size is not None else getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def hidden_size(model: nn.Module) -> int | None:
    """Return the width of a transformer, as its config says it, or None."""
    config = getattr(model, "config", None)
    sizes = [getattr(config, "hidden_size", None), *(getattr(config, "hidden_sizes", None) or [])]
    return max((size for size in sizes if isinstance(size, int)), default=None)
