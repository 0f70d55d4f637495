"""What accel's step could do wrong, by attributes replaced in the run as configured, `accel verify` finds and names."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import accel.preparation
import pytest
import torch
from accel import Accelerator, GradientAccumulationPlugin
from accel.preparation import Preparer
from accel.step.clipping import GradientClipping
from accel.step.training_step import TrainingStep
from accel_amp import AcceleratedOptimizer, AcceleratedScheduler, LossScaler, WindowScaler
from accel_checkpoint import save_weights
from accel_comm.transports.single import Single
from accel_data import DataLoaderShard
from accel_parallel import TorchSteps
from accel_parallel.strategies.ddp import Ddp
from accel_state import AccumulationState
from accel_verify.runner import RunComparison
from suite.soak import in_soak
from torch import nn
from torch._C._distributed_c10d import GradBucket  # torch.distributed has it too, but its type hints do not

#: whose attributes are replaced, and by what
Replacement = tuple[Any, dict[str, Any]]

TWICE = "it is 2 times that of plain PyTorch"
HALF = "it is 0.5 times that of plain PyTorch"
RANKS = "is not the same on rank 0 and on rank 1"
FIRST = "step 1: gradient of"

SHORT = {"accumulation": 4, "samples": 40}
FP16 = {"precision": "fp16", "clip": 0.01}


@dataclass(frozen=True)
class Mistake:
    """A mistake, what must be said of it, and the script in which it shows."""

    make: Callable[[], Replacement]
    said: str
    case: dict[str, Any]


MISTAKES: dict[str, Mistake] = {}


def mistake(said: str, **case: Any) -> Callable[[Callable[[], Replacement]], Callable[[], Replacement]]:
    def note(make: Callable[[], Replacement]) -> Callable[[], Replacement]:
        MISTAKES[make.__name__] = Mistake(make, said, case)
        return make

    return note


# How losses are divided.


@mistake(TWICE)
def loss_is_not_divided() -> Replacement:
    return TrainingStep, {"scale_loss": lambda self, loss, weight: loss}


@mistake(HALF)
def loss_is_divided_twice() -> Replacement:
    scaled = TrainingStep.scale_loss
    half = lambda self, loss, weight: scaled(self, loss, weight) / self._accumulation.every  # noqa: E731 # a mistake
    return TrainingStep, {"scale_loss": half}


@mistake("it is 0.25 times that of plain PyTorch", **SHORT)
def short_window_is_divided_by_the_full_length() -> Replacement:
    return TrainingStep, {"scale_loss": lambda self, loss, weight: loss / self._accumulation.every}


@mistake(FIRST, weights=True)
def weight_is_ignored() -> Replacement:
    scale_loss = TrainingStep.scale_loss
    return TrainingStep, {"scale_loss": lambda self, loss, weight: scale_loss(self, loss, None)}


def by_weight(change: Callable[[WindowScaler], None]) -> Replacement:
    original = WindowScaler._by_weight

    def mutated(self: WindowScaler, loss: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        change(self)
        return original(self, loss, weight)

    return WindowScaler, {"_by_weight": mutated}


@mistake(FIRST, weights=True)
def weights_of_other_ranks_are_ignored() -> Replacement:
    return by_weight(lambda window: setattr(window, "_transport", Single()))


@mistake(FIRST, weights=True)
def weights_of_earlier_micro_batches_are_ignored() -> Replacement:
    return by_weight(lambda window: setattr(window, "_sums", [one * 0 for one in window._sums]))


@mistake(FIRST, weights=True)
def earlier_micro_batches_are_not_weighed() -> Replacement:
    return WindowScaler, {"_rescale": lambda self, factor: None}


# How gradients travel.


def after_setup(change: Callable[[Any, Any], None]) -> Replacement:
    setup = Ddp.setup

    def mutated(self: Ddp, model: nn.Module, run: Any, policy: Any) -> nn.Module:
        container = setup(self, model, run, policy)
        change(container, run)
        return container

    return Ddp, {"setup": mutated}


def exchanging(arrives: Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]) -> Replacement:
    """What arrives of a rank's own gradients and of their mean over ranks."""

    def install(container: Any, run: Any) -> None:
        def exchange(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(arrives(bucket.buffer(), run.transport.all_reduce(bucket.buffer(), "mean"), run))
            return done

        container.register_comm_hook(None, exchange)

    return after_setup(install)


@mistake(RANKS)
def gradients_never_travel() -> Replacement:
    return after_setup(lambda container, run: setattr(container, "require_backward_grad_sync", False))


@mistake(RANKS)
def one_rank_keeps_its_own_gradient() -> Replacement:
    return exchanging(lambda own, mean, run: own if run.topology.rank else mean)


@mistake(TWICE)
def gradients_are_added_over_ranks() -> Replacement:
    return exchanging(lambda own, mean, run: mean * run.topology.world_size)


@mistake(FIRST)
def gradients_are_clipped_before_they_travel() -> Replacement:
    def clipped(own: torch.Tensor, mean: torch.Tensor, run: Any) -> Any:
        return run.transport.all_reduce(own * min(1.0, 0.01 / float(own.norm())), "mean")

    return exchanging(clipped)


@mistake("step 1: 0.weight before the step is not the same on rank 0 and on rank 1")
def one_rank_begins_elsewhere() -> Replacement:
    def disturb(container: nn.Module, run: Any) -> None:
        for parameter in container.parameters():
            parameter.data.add_(0.01 * run.topology.rank)

    return after_setup(disturb)


# When optimizers step, and what is cleared.


@mistake(FIRST)
def zero_grad_clears_inside_a_window() -> Replacement:
    return AcceleratedOptimizer, {"zero_grad": lambda self, set_to_none=True: self.optimizer.zero_grad()}


@mistake("step 2: gradient of")
def zero_grad_never_clears() -> Replacement:
    return AcceleratedOptimizer, {"zero_grad": lambda self, set_to_none=True: None}


@mistake("step 1: micro-batches", ranks=1)
def optimizer_steps_inside_a_window() -> Replacement:
    def step(self: AcceleratedOptimizer, closure: Any = None) -> None:
        due, self.accumulation.due = self.accumulation.due, True  # or the guard would refuse
        self.optimizer.step()
        self.accumulation.due = due

    return AcceleratedOptimizer, {"step": step}


@mistake("step 2: micro-batches")
def every_second_step_is_left_out() -> Replacement:
    step = AcceleratedOptimizer.step
    return AcceleratedOptimizer, {"step": lambda self, closure=None: self.accumulation.steps % 2 and step(self)}


@mistake("step 2: micro-batches")
def a_step_is_made_twice() -> Replacement:
    step = AcceleratedOptimizer.step
    return AcceleratedOptimizer, {"step": lambda self, closure=None: (step(self), step(self))}


@mistake("step 2: 0.weight before the step is not what it is in plain PyTorch")
def parameters_are_rounded_after_a_step() -> Replacement:
    step = AcceleratedOptimizer.step

    def mutated(self: AcceleratedOptimizer, closure: Any = None) -> None:
        step(self)
        for parameter in self.param_groups[0]["params"] if self.accumulation.due else ():
            parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)

    return AcceleratedOptimizer, {"step": mutated}


@mistake("step 1: micro-batches")
def windows_are_too_long() -> Replacement:
    made = AccumulationState.__init__
    return AccumulationState, {"__init__": lambda self, every, **options: made(self, every + 1, **options)}


@mistake("step 2: micro-batches", **SHORT)
def short_windows_go_on() -> Replacement:
    return GradientAccumulationPlugin, {"end": property(lambda self: "carry")}


# Learning rates.


def schedule_step(times: Callable[[AcceleratedScheduler], int]) -> Replacement:
    def step(self: AcceleratedScheduler) -> None:
        for _ in range(times(self)):
            self.scheduler.step()

    return AcceleratedScheduler, {"step": step}


@mistake("step 2: learning rate of group 0")
def schedule_advances_once() -> Replacement:
    return schedule_step(lambda self: int(self.accumulation.due))


@mistake("step 1: learning rate of group 0")
def schedule_advances_inside_a_window() -> Replacement:
    return schedule_step(lambda self: 2)


@mistake("step 2: learning rate of group 0")
def schedule_is_a_step_late() -> Replacement:
    return schedule_step(lambda self: 2 if self.accumulation.due and self.accumulation.steps > 1 else 0)


@mistake("step 2: learning rate of group 0", precision="fp16", scale=2.0**24)
def schedule_advances_after_a_skipped_step() -> Replacement:
    return schedule_step(lambda self: 2 * self.accumulation.due)


# What the optimizer has, and in which format.


@mistake("step 1: parameters: the optimizer does not have 4.bias")
def a_parameter_is_dropped() -> Replacement:
    optimizer = Preparer.optimizer

    def mutated(self: Preparer, raw: Any, *, place: bool | None = None) -> Any:
        raw.param_groups[0]["params"].pop()
        return optimizer(self, raw, place=place)

    return Preparer, {"optimizer": mutated}


def model_before(change: Callable[[Any], None]) -> Replacement:
    model = Preparer.model

    def mutated(self: Preparer, raw: Any, **options: Any) -> Any:
        change(raw)
        return model(self, raw, **options)

    return Preparer, {"model": mutated}


@mistake("step 1: parameters: the optimizer does not have 0.weight")
def the_optimizer_keeps_a_parameter_that_was_replaced() -> Replacement:
    return model_before(lambda raw: setattr(raw[0], "weight", nn.Parameter(raw[0].weight.detach().clone())))


@mistake("step 1: dtype of 0.weight: torch.bfloat16", precision="bf16")
def parameters_are_in_half_precision() -> Replacement:
    return model_before(lambda raw: raw.to(torch.bfloat16))


# Clipping, and the scale of fp16.


def clip_norm(mutated: Callable[..., torch.Tensor]) -> Replacement:
    clip = TorchSteps.clip_norm

    def clipped(self: TorchSteps, parameters: Any, limit: float, *, kind: float = 2.0) -> torch.Tensor:
        return mutated(lambda *one, **options: clip(self, *one, **options), list(parameters), limit)

    return TorchSteps, {"clip_norm": clipped}


@mistake(FIRST, clip=0.01)
def nothing_is_clipped() -> Replacement:
    return clip_norm(lambda clip, parameters, limit: clip(parameters, float("inf")))


@mistake(FIRST, clip=0.01)
def another_norm_is_clipped() -> Replacement:
    return clip_norm(lambda clip, parameters, limit: clip(parameters, limit, kind=1.0))


@mistake(FIRST, clip=0.01)
def each_gradient_is_clipped_by_itself() -> Replacement:
    return clip_norm(lambda clip, parameters, limit: sum(clip([parameter], limit) for parameter in parameters))


@mistake(FIRST, **FP16)
def scaled_gradients_are_clipped() -> Replacement:
    return GradientClipping, {"_unscale": lambda self, parameters, scaler: []}


@mistake(FIRST, precision="fp16")
def the_scale_is_not_divided_out() -> Replacement:
    def step(self: LossScaler, optimizer: Any, closure: Any = None) -> bool:
        self.stepping = True
        optimizer.step()
        self.stepping = False
        return True

    return LossScaler, {"step": step}


@mistake(TWICE, precision="fp16", accumulation=1)
def the_scale_is_stale() -> Replacement:
    scale = LossScaler.scale
    return LossScaler, {"scale": lambda self, loss: 2 * scale(self, loss)}


@mistake("step 1: skipped", **FP16)
def a_step_is_called_overflowed() -> Replacement:
    return LossScaler, {"step": lambda self, optimizer, closure=None: False}


# Saving and loading, and the data.


@mistake("a save and load round trip changes state 0 step of the optimizer's state")
def optimizer_state_is_not_restored() -> Replacement:
    return AcceleratedOptimizer, {"load_state_dict": lambda self, state: None}


@mistake("a save and load round trip changes last_epoch of the scheduler's state")
def schedule_state_is_not_restored() -> Replacement:
    return AcceleratedScheduler, {"load_state_dict": lambda self, state: None}


@mistake("the weights that were saved do not load")
def buffers_are_not_saved() -> Replacement:
    return Accelerator, {"save_model": lambda a, m, to: save_weights(dict(a.unwrap_model(m).named_parameters()), to)}


@mistake("step 1: loss")
def all_ranks_are_served_the_same() -> Replacement:
    prepare = vars(accel.preparation)["prepare_data_loader"]
    return accel.preparation, {"prepare_data_loader": lambda *one, **options: prepare(*one, process_index=0, **options)}


@mistake("step 1: loss")
def the_first_batch_comes_again_and_again() -> Replacement:
    iterate = DataLoaderShard.__iter__

    def mutated(self: Any) -> Iterator[Any]:
        first = None
        for batch in iterate(self):
            first = batch if first is None else first
            yield first

    return DataLoaderShard, {"__iter__": mutated}


CASES = {
    ", ".join(f"{key}={value}" for key, value in one.case.items()) or "usual": one.case for one in MISTAKES.values()
}


@pytest.mark.parametrize("name", ["usual", *in_soak(*(name for name in CASES if name != "usual"))])
def test_without_a_mistake_nothing_is_found(verified: Callable[..., RunComparison], name: str) -> None:
    found = verified(**CASES[name])
    assert found.same, "\n".join(found.lines)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_named(verified: Callable[..., RunComparison], name: str) -> None:
    wrong = MISTAKES[name]
    found = verified(wrong.make, **wrong.case)
    assert not found.same
    assert wrong.said in found.lines[0]
