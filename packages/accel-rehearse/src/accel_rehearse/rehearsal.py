"""Run a script as one rank of many, on fake tensors, and note what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import Mock, patch

import torch
from accel import Accelerator
from accel.optimizer import AcceleratedOptimizer
from accel.preparation import Preparer
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.modules import module as modules
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from accel_rehearse.allocations import GRADIENTS, OPTIMIZER, PARAMETERS, Allocations, bytes_of
from accel_rehearse.exchanges import ExchangeLog
from accel_rehearse.fake_dispatch import FakeDispatch
from accel_rehearse.flops import FlopCount
from accel_rehearse.loop_bounds import LoopBounds, RehearsalOver, length_or_none
from accel_rehearse.placeholders import Placeholders
from accel_rehearse.refusal import frame_of_script, line_of
from accel_rehearse.stage import BACKWARD, PREPARE, STEP, Stage
from accel_rehearse.surroundings import convert, exchange_in_python, many_at_once, writing_nothing


class Rehearsal:
    """A script that runs as one rank of many, and what is noted of it. It observes every Accelerator.

    Args:
        steps: Optimizer steps to make.
        cpu: Whether the job computes on the CPU, and not on devices with memory of their own.
    """

    def __init__(self, steps: int, *, cpu: bool) -> None:
        self.stage, self._cpu = Stage(), cpu
        self.allocations = Allocations(self.stage, apart=not cpu)
        self.exchanges, self.flops, self.placeholders = ExchangeLog(), FlopCount(), Placeholders()
        self.bounds = LoopBounds(steps, self.allocations)
        self.bounds.made = lambda: self._made / max(len(self.optimizers), 1)
        self.mode = FakeDispatch(self.stage, self.allocations, self.exchanges, self.flops, self.placeholders)
        self.accelerators: list[Accelerator] = []
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.loaders: list[DataLoader[Any]] = []
        #: torch's schedulers, with their places after each round of steps
        self.schedules: dict[LRScheduler, list[int]] = {}
        self._made = 0
        #: bytes of gradients before, and of the state of optimizers after, the newest steps
        self.gradients_bytes: dict[int, int] = {}
        #: exchanges and operations until the end of each round of steps
        self.marks: list[tuple[int, int]] = []
        #: lines of the script, by what it does there
        self.lines: dict[str, str] = {}
        #: lines at which it gathers what was evaluated, and iterates over a loader that was not prepared
        self._gathers: dict[str, Any] = {}
        self._unprepared: list[str] = []

    def prepared(self, accelerator: Accelerator, ready: object) -> None:
        """Note an object that an Accelerator has prepared."""
        if accelerator not in self.accelerators:
            self.accelerators.append(accelerator)
        if isinstance(ready, nn.Module):
            self.models.append(ready)
            self.lines.setdefault("prepare", line_of(frame_of_script()))
            inner = accelerator.unwrap_model(ready)
            self.stage.name(inner)
            self.allocations.note_all(list(ready.parameters()), PARAMETERS)
            self.allocations.move([*ready.parameters(), *ready.buffers()])
            if hasattr(inner, "save_pretrained"):
                inner.__dict__["save_pretrained"] = Mock(return_value=None)
        elif isinstance(ready, AcceleratedOptimizer):
            self.optimizers.append(ready.optimizer)
        elif isinstance(ready, DataLoader):
            self.loaders.append(ready)

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Note that a backward begins."""
        self.bounds.backwards += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run what is inside the block on fake tensors, and note what it does."""
        with ExitStack() as stack:
            for block in (
                self._hooks(),
                self.placeholders.in_place(),
                self.bounds.on_loaders(),
                self.allocations.watching_resizes(),
                self._phases(),
                writing_nothing(),
                many_at_once(cpu=self._cpu),
                patch.object(Accelerator, "observer", self),
                self.mode,
            ):
                stack.enter_context(block)
            yield

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        handles = [
            modules.register_module_parameter_registration_hook(self.mode.parameter),
            modules.register_module_buffer_registration_hook(self.mode.buffer),
            modules.register_module_forward_pre_hook(self.stage.enter),
            modules.register_module_forward_hook(self.stage.leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _phases(self) -> Iterator[None]:
        stage = self.stage

        def during(phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def inside(*args: Any, **kwargs: Any) -> Any:
                with stage.during(phase):
                    return call(*args, **kwargs)

            return inside

        forward: Any = DistributedDataParallel._pre_forward

        def pre_forward(container: Any, *args: Any, **kwargs: Any) -> Any:
            exchange_in_python(container)
            return forward(container, *args, **kwargs)

        apply: Any = nn.Module._apply

        def converted(module: nn.Module, fn: Any, recurse: bool = True) -> Any:
            fakes = [one for one in module._parameters.values() if isinstance(one, FakeTensor)]
            if fakes:
                return convert(module, fn, fakes, recurse=recurse)
            return apply(module, fn, recurse)

        begin: Any = LRScheduler.__init__

        def scheduled(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            begin(scheduler, *args, **kwargs)
            self.schedules[scheduler] = []
            self.lines.setdefault("schedule", line_of(frame_of_script()))

        propagate: Any = ShardingPropagator._propagate_tensor_meta_non_cached

        def outside(*args: Any) -> Any:
            with _disable_current_modes():  # DTensor asks for shapes by fakes of its own
                return propagate(*args)

        gather_whole, iterate_whole = Accelerator.gather, DataLoader.__iter__

        def gather(accelerator: Accelerator, *args: Any, **kwargs: Any) -> Any:
            if stage.evaluating and self.bounds.passing and self.bounds.passing[-1] not in self.bounds.training:
                self._gathers[line_of(frame_of_script())] = self.bounds.passing[-1]
            return gather_whole(accelerator, *args, **kwargs)

        def iterate(loader: DataLoader[Any]) -> Any:
            if loader not in self.loaders:
                self._unprepared.append(line_of(frame_of_script()))
            return iterate_whole(loader)

        engine = "_engine_run_backward"
        with (
            patch.object(torch.autograd, engine, during(BACKWARD, getattr(torch.autograd, engine))),
            patch.object(Preparer, "prepare", during(PREPARE, Preparer.prepare)),
            patch.object(Preparer, "model", during(PREPARE, Preparer.model)),
            patch.object(DistributedDataParallel, "_pre_forward", pre_forward),
            patch.object(nn.Module, "_apply", converted),
            patch.object(Accelerator, "gather", gather),
            patch.object(DataLoader, "__iter__", iterate),
            patch.object(LRScheduler, "__init__", scheduled),
            patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", outside),
        ):
            yield

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not isinstance(optimizer, AcceleratedOptimizer):
            gradients = [one.grad for group in optimizer.param_groups for one in group["params"]]
            self.allocations.note_all(gradients, GRADIENTS)
            self.gradients_bytes[id(optimizer)] = bytes_of(gradients)
            self._stepping = self.stage.during(STEP)
            self._stepping.__enter__()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not isinstance(optimizer, AcceleratedOptimizer):
            self._stepping.__exit__(None, None, None)
            self.allocations.note_all(optimizer.state, OPTIMIZER)
            self._made += 1
            if self._made % max(len(self.optimizers), 1) == 0 and len(self.marks) < self.bounds.steps:
                self.marks.append((len(self.exchanges.log), self.flops.total))
                for scheduler, places in self.schedules.items():
                    places.append(scheduler.last_epoch)
            elif self.bounds.is_done and not self.bounds.training:
                raise RehearsalOver  # nothing else ends its loop

    def mistakes(self, *, failed: bool) -> list[list[str]]:
        """Return what this rank alone shows to be wrong: what, the line, and what would help.

        Args:
            failed: Whether the script has ended with an error.
        """
        found, where = list[list[str]](), self.lines.get("prepare", "")
        if self._unprepared and not self.bounds.training:
            what = "the script trains on a loader that was not prepared: all ranks get the same samples"
            found.append([what, self._unprepared[0], "pass the loader to accelerator.prepare"])
        if not self.marks and not failed:
            found.append(["no optimizer has made a step", where, "prepare optimizer and loader, and step"])
        elif self.marks and not any(self.gradients_bytes.values()):
            found.append(["the optimizer steps without gradients", where, "give it the parameters of the model"])
        if any(length_or_none(loader) == 0 for loader in self.loaders):
            found.append(["an epoch has no batch for this rank", where, "a smaller batch, or fewer ranks"])
        for line, loader in self._gathers.items():
            rows, length = loader.total_batch_size, loader.total_dataset_length
            if rows and length % rows:
                what = f"gather returns repeated samples too: {-(-length // rows) * rows} for {length} of the data"
                found.append([what, line, "use accelerator.gather_for_metrics"])
        return found
