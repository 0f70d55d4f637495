"""What scripts do to a model, an optimizer or gradients around `prepare`, each written once for any way of training.

Each change trains a small model in float64 by steps that add up to those of one process with the whole batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from accel import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from whole_tensors import whole

ROWS, WIDTH, STEPS = 16, 6, 4
#: names of layers that a plan divides, for layouts with tensor parallelism
PLAN = {"blocks.0": "colwise", "blocks.1": "rowwise"}


class Net(nn.Module):
    """Two blocks that a plan can divide, a frozen layer between them and the head, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)])
        self.spare = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 2)
        self.late: nn.Module | None = None
        self.repeats = 1

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(rows))
        for _ in range(self.repeats):
            hidden = hidden + self.blocks[1](torch.tanh(self.blocks[0](hidden)))
        hidden = hidden + torch.tanh(self.spare(hidden))
        if self.late is not None:
            hidden = hidden + self.late(hidden)
        outputs: Tensor = self.head(hidden)
        return outputs


class ByHand:
    """The calls of an Accelerator, as plain PyTorch on one process."""

    process_index, num_processes, device = 0, 1, torch.device("cpu")

    def prepare(self, *objects: Any) -> Any:
        return objects if len(objects) > 1 else objects[0]

    def backward(self, loss: Tensor, **options: Any) -> None:
        options.pop("weight", None)
        loss.backward(**options)  # type: ignore[no-untyped-call]

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        return model

    def clip_grad_norm_(self, parameters: Any, limit: float, norm_type: float = 2.0) -> Tensor:
        return nn.utils.clip_grad_norm_(parameters, limit, norm_type)

    def clip_grad_value_(self, parameters: Any, limit: float) -> None:
        nn.utils.clip_grad_value_(parameters, limit)


class Training:
    """A model that a change trains, by hand or prepared; `result` has all numbers that have to be equal."""

    def __init__(self, ways: dict[str, Any] | None, dtype: torch.dtype = torch.float64, *, zeros: bool = False) -> None:
        self.accelerator: Any = ByHand()
        if ways is not None:
            self.accelerator = Accelerator(**({"cpu": True} | ways))
        self.dtype = dtype
        #: whether what has no gradient steps with zeros
        self.zeros = zeros
        mesh: Any = None if ways is None else self.accelerator.run.mesh
        self.size = 1 if mesh is None else mesh.data_size
        self.index = 0 if mesh is None else mesh.data_rank(self.accelerator.process_index)
        torch.manual_seed(7)
        self.model: Any = Net().to(dtype)
        self.optimizer: Any = None
        self.told: list[Tensor] = []

    def prepare(self, optimizer: Callable[..., Any] | None = None) -> None:
        """Makes an optimizer of what is trained, unless there is one, and prepares both."""
        if self.optimizer is None:
            self.optimizer = (optimizer or sgd)([held for held in self.model.parameters() if held.requires_grad])
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    @property
    def inner(self) -> Any:
        return self.accelerator.unwrap_model(self.model)

    def rows(self, step: int) -> Tensor:
        """This rank's rows of a batch."""
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)
        return batch.to(self.accelerator.device, self.dtype).view(self.size, -1, WIDTH)[self.index]

    def loss(self, step: int) -> Tensor:
        return loss_of(self.model(self.rows(step)))

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.zeros)

    def train(self, first: int = 0, steps: int = STEPS) -> None:
        for step in range(first, first + steps):
            self.accelerator.backward(self.loss(step))
            self.step()

    def result(self) -> dict[str, Tensor]:
        numbers = {name: whole(value) for name, value in self.inner.state_dict().items()}
        return numbers | {f"told {place}": whole(value) for place, value in enumerate(self.told)}


def loss_of(outputs: Tensor) -> Tensor:
    """A loss that no rank has of the same size as others."""
    return (outputs - 1).square().mean() + outputs.sum() / ROWS * 0


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class OwnList(torch.optim.SGD):
    """An optimizer that steps with parameters that it keeps by itself, in places of several kinds."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        flat = [held for group in self.param_groups for held in group["params"]]
        self.mine = {"all": (flat[:2], tuple(flat[2:]))}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for held in (*self.mine["all"][0], *self.mine["all"][1]):
            if held.grad is not None:
                held.sub_(held.grad, alpha=self.param_groups[0]["lr"])


class InClosure(torch.optim.SGD):
    """An optimizer whose parameters nobody can find."""

    def __init__(self, parameters: Any, lr: float) -> None:
        parameters = list(parameters)
        super().__init__(parameters, lr=lr)

        def stepped() -> None:
            for held in parameters:
                if held.grad is not None:
                    held.sub_(held.grad, alpha=lr)

        self.stepped = stepped

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.stepped()


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another, which shares its groups."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base = torch.optim.Adam(self.param_groups, lr=0.1)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step()


Change = Callable[[Training], None]
CHANGES: dict[str, Change] = {}
TITLES: dict[str, str] = {}


def change(title: str) -> Callable[[Change], Change]:
    def note(one: Change) -> Change:
        CHANGES[one.__name__] = one
        TITLES[one.__name__] = title
        return one

    return note


# --- the optimizer ---


@change("LBFGS")
def lbfgs(t: Training) -> None:
    t.prepare(lambda held: torch.optim.LBFGS(held, lr=0.1, max_iter=3))
    for step in range(3):

        def closure(step: int = step) -> Tensor:
            t.optimizer.zero_grad()
            loss = t.loss(step)
            t.accelerator.backward(loss)
            return t.accelerator.reduce(loss.detach(), "mean") if hasattr(t.accelerator, "reduce") else loss.detach()

        t.optimizer.step(closure)


@change("an optimizer that keeps its own lists of parameters")
def own_list(t: Training) -> None:
    t.prepare(lambda held: OwnList(held, lr=0.1))
    t.train()


@change("an optimizer inside of another")
def wrapping(t: Training) -> None:
    t.prepare(Wrapping)
    t.train()


@change("an optimizer whose parameters are hidden in a function")
def in_closure(t: Training) -> None:
    t.prepare(lambda held: InClosure(held, lr=0.1))
    t.train()


@change("`add_param_group` of the prepared model's parameters")
def group_of_prepared(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    t.inner.spare.requires_grad_(True)
    t.optimizer.add_param_group({"params": t.inner.spare.parameters(), "lr": 0.05})
    t.train(2, 3)


@change("`add_param_group` of parameters that were listed before `prepare`")
def group_listed_before(t: Training) -> None:
    listed = list(t.model.spare.parameters())
    t.prepare()
    t.train(0, 2)
    t.inner.spare.requires_grad_(True)
    t.optimizer.add_param_group({"params": listed, "lr": 0.05})
    t.train(2, 3)


@change("a parameter that is in no model")
def loose(t: Training) -> None:
    factor = nn.Parameter(torch.ones(3, dtype=t.dtype))
    t.optimizer = sgd([{"params": [held for held in t.model.parameters() if held.requires_grad]}, {"params": [factor]}])
    t.prepare()
    for step in range(STEPS):
        t.accelerator.backward(loss_of(t.model(t.rows(step)) * factor.prod()))
        t.step()
    t.told.append(factor)


@change("rates, momenta and weight decays that change")
def rates(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        for group in t.optimizer.param_groups:
            group.update(lr=0.1 / (step + 1), momentum=0.5, weight_decay=0.01)
        t.train(step, 1)


@change("`optimizer.load_state_dict`")
def optimizer_state(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    kept = deepcopy(t.optimizer.state_dict())
    t.train(2, 1)
    t.optimizer.load_state_dict(kept)
    t.train(3, 2)


@change("two optimizers of one model")
def two_optimizers(t: Training) -> None:
    one, other = sgd(t.model.head.parameters()), torch.optim.Adam(t.model.first.parameters(), lr=0.01)
    t.model, one, other = t.accelerator.prepare(t.model, one, other)
    for step in range(STEPS):
        t.accelerator.backward(t.loss(step))
        for optimizer in (one, other):
            optimizer.step()
        t.model.zero_grad()


@change("an optimizer of the head alone")
def head_alone(t: Training) -> None:
    t.optimizer = sgd(t.model.head.parameters())
    t.prepare()
    t.train()


# --- what is trained ---


@change("unfreezing a layer that the optimizer has")
def unfrozen(t: Training) -> None:
    t.optimizer = sgd(t.model.parameters())
    t.prepare()
    t.train(0, 2)
    t.inner.spare.requires_grad_(True)
    t.train(2, 3)


@change("freezing a layer")
def frozen(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    t.inner.blocks[0].requires_grad_(False)
    t.train(2, 3)


@change("freezing a layer and unfreezing another, as peft's `set_adapter`")
def swapped(t: Training) -> None:
    t.optimizer = sgd(t.model.parameters())
    t.prepare()
    t.train(0, 2)
    for trained in (True, False, True):
        t.inner.spare.requires_grad_(trained)
        t.inner.first.requires_grad_(not trained)
        t.train(2, 2)


@change("a layer that is put into the model")
def new_layer(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    torch.manual_seed(t.accelerator.process_index)
    t.inner.late = nn.Linear(WIDTH, WIDTH).to(t.accelerator.device, t.dtype)
    t.optimizer.add_param_group({"params": t.inner.late.parameters(), "lr": 0.05})
    t.train(2, 3)


@change("a layer that is not used in a step")
def skipped_layer(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        t.inner.repeats = step % 2
        t.train(step, 1)


@change("a layer that replaces another")
def replaced_layer(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    torch.manual_seed(t.accelerator.process_index)
    t.inner.head = nn.Linear(WIDTH, 3).to(t.accelerator.device, t.dtype)
    t.optimizer.add_param_group({"params": t.inner.head.parameters(), "lr": 0.05})
    t.train(2, 3)


@change("two weights that are tied")
def tied(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    t.inner.spare.weight = t.inner.first.weight
    t.train(2, 3)


# --- backwards ---


@change("two backwards of one forward")
def second_backward(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        outputs = t.model(t.rows(step))
        t.accelerator.backward(loss_of(outputs), retain_graph=True)
        t.accelerator.backward(outputs.abs().mean())
        t.step()


@change("two forwards, then two backwards")
def two_forwards(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        losses = [t.loss(step), t.loss(step + 10)]
        for loss in losses:
            t.accelerator.backward(loss)
        t.step()


@change("two backwards with weights")
def weighted_backwards(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        outputs = t.model(t.rows(step))
        t.accelerator.backward(loss_of(outputs) * 2, weight=2, retain_graph=True)
        t.accelerator.backward(outputs.abs().mean() * 2, weight=2)
        t.step()


@change("two backwards of each forward, in a window of accumulation")
def backwards_of_a_window(t: Training) -> None:
    t.prepare()
    t.accelerator.gradient_accumulation_steps = 2
    for step in range(2 * STEPS):
        with t.accelerator.accumulate(t.model):
            outputs = t.model(t.rows(step))
            t.accelerator.backward(loss_of(outputs), retain_graph=True)
            t.accelerator.backward(outputs.abs().mean())
            t.step()


@change("a penalty on gradients (`create_graph=True`)")
def gradient_penalty(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        rows = t.rows(step).requires_grad_(True)
        outputs = t.model(rows)
        (slope,) = torch.autograd.grad(outputs.sum(), rows, create_graph=True)
        t.accelerator.backward(loss_of(outputs) + slope.square().mean())
        t.step()


@change("a term of the weights in the loss")
def weight_term(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        term = sum(held.square().sum() for held in t.inner.parameters() if held.requires_grad)
        t.accelerator.backward(t.loss(step) + 0.01 * term)
        t.step()


@change("a term of the weights in the loss, by `full_tensor()`")
def whole_weight_term(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        trained: list[Any] = [held for held in t.inner.parameters() if held.requires_grad]
        terms = [(held.full_tensor() if hasattr(held, "full_tensor") else held).square().sum() for held in trained]
        t.accelerator.backward(t.loss(step) + 0.01 * torch.stack(terms).sum())
        t.step()


@change("a block that is used three times")
def repeated_block(t: Training) -> None:
    t.model.repeats = 3
    t.prepare()
    t.train()


# --- gradients ---


@change("`register_hook` of a parameter before `prepare`")
def hook_before(t: Training) -> None:
    t.model.first.weight.register_hook(_masked)
    t.prepare()
    t.train()


@change("`register_hook` of a parameter after `prepare`")
def hook_after(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    t.inner.first.weight.register_hook(_masked)
    t.train(2, 2)


def _masked(gradient: Tensor) -> Tensor:
    mask = torch.ones_like(gradient)
    mask[:3] = 0
    return gradient * mask


@change("`register_post_accumulate_grad_hook` before `prepare`")
def grown_hook_before(t: Training) -> None:
    t.model.first.weight.register_post_accumulate_grad_hook(_halved)
    t.prepare()
    t.train()


@change("`register_post_accumulate_grad_hook` after `prepare`")
def grown_hook_after(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    t.inner.first.weight.register_post_accumulate_grad_hook(_halved)
    t.train(2, 2)


def _halved(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


@change("`register_hook` of a parameter that clips")
def clipping_hook(t: Training) -> None:
    t.prepare()
    for held in t.inner.parameters():
        if held.requires_grad:
            held.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    t.train()


@change("`register_post_accumulate_grad_hook` that clips")
def clipping_grown_hook(t: Training) -> None:
    t.prepare()
    for held in t.inner.parameters():
        if held.requires_grad:
            held.register_post_accumulate_grad_hook(_clamped)
    t.train()


def _clamped(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.01, 0.01)


@change("an optimizer that steps in a hook of its parameter")
def stepping_hook(t: Training) -> None:
    t.prepare()
    for held in t.inner.parameters():
        if held.requires_grad:
            held.register_post_accumulate_grad_hook(lambda grown: torch.optim.SGD([grown], lr=0.05).step())
    t.train()


@change("forward and backward hooks of a module")
def module_hooks(t: Training) -> None:
    t.model.first.register_forward_hook(lambda module, inputs, output: output * 2)
    t.prepare()
    t.inner.head.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.5,))
    t.inner.head.register_full_backward_hook(lambda module, before, after: (before[0] * 2,))
    t.train()


@change("attributes of parameters")
def attributes(t: Training) -> None:
    for name, held in t.model.named_parameters():
        held.lr_scale = 0.1 if "bias" in name else 1.0
    t.prepare()
    for step in range(STEPS):
        t.accelerator.backward(t.loss(step))
        for held in t.inner.parameters():
            if held.grad is not None:
                held.grad.mul_(held.lr_scale)
        t.step()


@change("the norm of a gradient, logged")
def logged_norms(t: Training) -> None:
    t.prepare()
    accelerator = t.accelerator
    for step in range(STEPS):
        accelerator.backward(t.loss(step))
        for held in t.inner.parameters():
            if held.grad is not None:
                norm = held.grad.norm()
                t.told.append(norm if isinstance(accelerator, ByHand) else accelerator.reduce(norm, "mean"))
        t.step()


@change("clipping by the norms 2, 1, inf and -inf")
def clipped(t: Training) -> None:
    t.prepare()
    for step, kind in enumerate((2.0, 1.0, float("inf"), float("-inf"), 3.0)):
        t.accelerator.backward(t.loss(step))
        t.told.append(t.accelerator.clip_grad_norm_(t.model.parameters(), 0.05, norm_type=kind))
        t.step()


@change("`zero_grad(set_to_none=False)`, and gradients scaled by hand")
def kept_gradients(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        t.accelerator.backward(t.loss(step))
        for held in t.inner.parameters():
            if held.grad is not None:
                held.grad.mul_(0.5)
        t.optimizer.step()
        t.optimizer.zero_grad(set_to_none=False)


@change("rows written into (`parameter.grad[:2] = 0`)")
def rows_written(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        t.accelerator.backward(t.loss(step))
        t.inner.first.weight.grad[:2] = 0
        t.inner.blocks[0].weight.grad[3:6] = 1
        t.inner.head.weight.grad[:, 1] *= 0.5
        t.step()


@change("rows changed in place (`parameter.grad[2].zero_()`)")
def rows_in_place(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        t.accelerator.backward(t.loss(step))
        t.inner.blocks[0].weight.grad[2].zero_()
        t.step()


@change("a number read (`parameter.grad.norm().item()`)")
def number_read(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        t.accelerator.backward(t.loss(step))
        for held in t.inner.parameters():
            if held.grad is not None:
                held.grad.mul_(0.1 / held.grad.norm().item())
        t.step()


# --- weights ---


@change("`model.load_state_dict` of the model's own weights")
def model_state(t: Training) -> None:
    t.prepare()
    t.train(0, 1)
    kept = {name: value.clone() for name, value in t.inner.state_dict().items()}
    t.train(1, 2)
    t.inner.load_state_dict(kept)
    t.train(3, 2)


@change("`load_state_dict` of whole weights, and of a whole optimizer state")
def whole_state(t: Training) -> None:
    other = Training(None, t.dtype, zeros=t.zeros)
    other.prepare()
    other.train(0, 1)
    t.prepare()
    t.inner.load_state_dict(other.inner.state_dict())
    t.optimizer.load_state_dict(other.optimizer.state_dict())
    t.train(1, 3)


@change("weights changed in place (`torch.no_grad`)")
def weights_in_place(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    with torch.no_grad():
        for held in t.inner.parameters():
            held.mul_(0.5)
    t.train(2, 2)


@change("`parameter.data` replaced")
def data_replaced(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    for held in t.inner.parameters():
        held.data = held.data * 0.5
    t.train(2, 2)


@change("an average of the weights (`AveragedModel`)")
def averaged(t: Training) -> None:
    t.prepare()
    moving: Any = get_ema_multi_avg_fn  # which torch has left without types
    average = AveragedModel(t.inner, multi_avg_fn=moving(0.9))
    for step in range(STEPS):
        t.train(step, 1)
        average.update_parameters(t.inner)
    t.told += average.module.parameters()


@change("a deep copy of the weights, and back")
def copied_weights(t: Training) -> None:
    t.prepare()
    t.train(0, 1)
    kept = deepcopy(t.inner.state_dict())
    t.train(1, 2)
    t.inner.load_state_dict(kept)
    t.train(3, 1)


@change("`train()`, `eval()` and a forward without gradients between steps")
def modes(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        t.model.eval()
        with torch.no_grad():
            t.model(t.rows(step + 20))
        t.model.train()
        t.train(step, 1)


@change("the model moved (`model.to`) to the device where it is")
def moved(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    t.model.to(t.accelerator.device)
    t.train(2, 2)


@change("the model converted (`model.to(dtype)`), and back")
def converted(t: Training) -> None:
    t.prepare()
    t.train(0, 2)
    t.model.to(torch.float32 if t.dtype is torch.float64 else torch.float64)
    t.model.to(t.dtype)
    t.train(2, 2)


# --- past the Accelerator ---


@change("an optimizer that is made before `prepare`, and never prepared")
def never_prepared(t: Training) -> None:
    t.optimizer = sgd([held for held in t.model.parameters() if held.requires_grad])
    t.model = t.accelerator.prepare(t.model)
    t.train()


@change("`loss.backward()` twice, past `accelerator.backward`")
def direct_backwards(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        outputs = t.model(t.rows(step))
        loss_of(outputs).backward(retain_graph=True)  # type: ignore[no-untyped-call]
        outputs.abs().mean().backward()
        t.step()


@change("gradients of `torch.autograd.grad`, put into `parameter.grad`")
def autograd_grad(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        trained = [held for held in t.inner.parameters() if held.requires_grad]
        for held, gradient in zip(trained, torch.autograd.grad(t.loss(step), trained), strict=True):
            held.grad = gradient
        t.step()


@change("a call with other parameters (`functional_call`)")
def called_with_others(t: Training) -> None:
    t.prepare()
    for step in range(STEPS):
        others = {name: held * 1.1 for name, held in t.model.named_parameters()}
        t.accelerator.backward(loss_of(torch.func.functional_call(t.model, others, (t.rows(step),))))
        t.step()


def main(way: str, file: str) -> None:
    """Makes all changes by hand, on one device or over several XLA devices, and saves what comes out."""
    ways: dict[str, dict[str, Any] | None] = {"hand": None, "one": {}, "spmd": {"strategy": "spmd", "cpu": False}}
    results: dict[str, Any] = {}
    for name, one in CHANGES.items():
        training = Training(ways[way], torch.float32)
        try:
            one(training)
            results[name] = {key: value.cpu() for key, value in training.result().items()}
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError) as error:
            results[name] = f"{type(error).__name__}: {error}"
    torch.save(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
