"""Each feature of a loop is with divided sequences what it is on one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import accel_sequence
import pytest
import torch
from accel import Accelerator, ParallelismConfig, init_empty_weights, load_checkpoint_in_model
from accel_state import release
from accel_testing import MakePool
from long_sequences.own_model import LENGTH, VOCABULARY, Own
from safetensors.torch import load_file, save_file
from torch import Tensor
from whole_tensors import whole

TOKENS = torch.randint(0, VOCABULARY, (6, 2, LENGTH), generator=torch.Generator().manual_seed(8))
STEPS = 3


def loss_of(model: Any, tokens: Tensor) -> Tensor:
    return accel_sequence.loss(model(tokens), tokens, shifted=False)


class Loop:
    """A loop over a model, an optimizer, and tokens that are given by hand."""

    def __init__(self, ways: dict[str, Any], precision: str = "no", frozen: bool = False) -> None:
        release()
        self.accelerator = Accelerator(cpu=True, mixed_precision=precision, **ways)
        torch.manual_seed(0)
        raw = Own() if precision != "no" else Own().double()
        raw.tokens.requires_grad_(not frozen)
        trained = [parameter for parameter in raw.parameters() if parameter.requires_grad]
        self.model, self.optimizer = self.accelerator.prepare(raw, torch.optim.AdamW(trained, lr=0.01))

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> dict[str, Tensor]:
        state = self.accelerator.unwrap_model(self.model).state_dict()
        return {name: whole(value) for name, value in state.items()}


def values_are_clipped(ways: dict[str, Any], folder: Path) -> Any:
    loop = Loop(ways, frozen=True)
    for tokens in TOKENS[:STEPS]:
        loop.accelerator.backward(loss_of(loop.model, tokens))
        loop.accelerator.clip_grad_value_(loop.model.parameters(), 0.01)
        loop.step()
    return loop.weights()


def gradients_stay_for_a_while(ways: dict[str, Any], folder: Path) -> Any:
    loop = Loop(ways)
    for first, second in TOKENS.view(STEPS, 2, 2, LENGTH):
        with loop.accelerator.no_sync(loop.model):
            loop.accelerator.backward(loss_of(loop.model, first))
        loop.accelerator.backward(loss_of(loop.model, second))
        loop.step()
    return loop.weights()


def two_models_train(ways: dict[str, Any], folder: Path) -> Any:
    loop = Loop(ways)
    raw = Own().double()
    other, optimizer = loop.accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.1))
    for tokens in TOKENS[:STEPS]:
        for model, steps in ((loop.model, loop.optimizer), (other, optimizer)):
            loop.accelerator.backward(loss_of(model, tokens))
            steps.step()
            steps.zero_grad()
    state = loop.accelerator.unwrap_model(other).state_dict()
    return [loop.weights(), {name: whole(value) for name, value in state.items()}]


def files_are_whole(ways: dict[str, Any], folder: Path) -> Any:
    loop = Loop(ways)
    loop.accelerator.backward(loss_of(loop.model, TOKENS[0]))
    loop.step()
    loop.accelerator.save_model(loop.model, folder / "model")
    loop.accelerator.save_state(str(folder / "state"), asynchronous=True)
    saved = loop.weights()
    loop.accelerator.backward(loss_of(loop.model, TOKENS[1]))
    loop.step()
    loop.accelerator.wait_for_everyone()
    loop.accelerator.load_state(str(folder / "state"))
    assert all(torch.equal(value, saved[name]) for name, value in loop.weights().items())
    return [load_file(folder / "model" / "model.safetensors"), saved]


def a_model_on_meta_is_filled(ways: dict[str, Any], folder: Path) -> Any:
    release()
    accelerator = Accelerator(cpu=True, **ways)
    torch.manual_seed(0)
    made = Own().double()
    folder.mkdir(exist_ok=True)
    if accelerator.is_main_process:
        save_file(made.state_dict(), folder / "model.safetensors")
    accelerator.wait_for_everyone()
    with init_empty_weights():
        raw = Own().double()
    model = accelerator.prepare(raw) if ways else raw
    load_checkpoint_in_model(model, folder, {"": accelerator.device}, strict=True)
    model = model if ways else accelerator.prepare(model)
    optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=0.01))
    accelerator.backward(loss_of(model, TOKENS[0]))
    optimizer.step()
    return {name: whole(value) for name, value in accelerator.unwrap_model(model).state_dict().items()}


FEATURES = [values_are_clipped, gradients_stay_for_a_while, two_models_train, files_are_whole]


def run_all(sizes: dict[str, Any], folder: Path) -> list[Any]:
    """The results of all features."""
    ways = {"parallelism_config": ParallelismConfig(**sizes)} if sizes else {}
    found = [feature(ways, folder / feature.__name__) for feature in FEATURES]
    return [*found, a_model_on_meta_is_filled({**ways, "strategy": "fsdp2"} if sizes else {}, folder / "meta")]


@pytest.mark.parametrize("sizes", [{"sp_size": 2}, {"cp_size": 2}], ids=str)
def test_a_feature_does_with_parts_what_it_does_with_the_whole(
    world: MakePool, tmp_path: Path, sizes: dict[str, Any]
) -> None:
    wanted = run_all({}, tmp_path / "one")
    for found in world(2).run(run_all, sizes, tmp_path / "two", timeout_s=110):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def in_half(ways: dict[str, Any], precision: str) -> tuple[list[float], bool]:
    """Losses, and whether a step was skipped in which one rank alone had an overflow."""
    loop, losses = Loop(ways, precision), []
    for tokens in TOKENS:
        loss = loss_of(loop.model, tokens)
        losses.append(loss.item())
        loop.accelerator.backward(loss)
        loop.step()
    if precision == "fp16":
        loss = loss_of(loop.model, TOKENS[0])
        mine = loop.accelerator.process_index == loop.accelerator.num_processes - 1
        loop.accelerator.backward(loss * (1e38 if mine else 1.0))
        loop.step()
    return losses, loop.accelerator.optimizer_step_was_skipped


def _both(make: Callable[..., Any], sizes: dict[str, Any]) -> list[Any]:
    return [make({"parallelism_config": ParallelismConfig(**sizes)} if sizes else {}, one) for one in ("bf16", "fp16")]


@pytest.mark.parametrize("sizes", [{"sp_size": 2}, {"cp_size": 2}], ids=str)
def test_half_precision_trains_within_its_digits(world: MakePool, sizes: dict[str, Any]) -> None:
    wanted = _both(in_half, {})
    for found in world(2).run(_both, in_half, sizes):
        for (losses, skipped), (others, skipped_too) in zip(found, wanted, strict=True):
            assert skipped == skipped_too
            torch.testing.assert_close(losses, others, rtol=0, atol=2e-2)
    assert wanted[1][1]
