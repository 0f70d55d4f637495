"""Triggers, traces, and local steps."""

import json
from pathlib import Path

import pytest
import torch
from accel import (
    Accelerator,
    LocalSGD,
    ProfileKwargs,
)
from accel_comm.transports.torch_dist import TorchDist
from accel_testing import MakePool, assert_same_numbers
from small_steps import Weights, batch, copied
from suite.toy_models import Mlp
from torch import nn
from torch.optim import SGD


def triggers() -> list[bool]:
    accelerator = Accelerator(cpu=True)
    seen = [accelerator.check_trigger()]
    if accelerator.is_last_process:
        accelerator.set_trigger()
    seen += [accelerator.check_trigger(), accelerator.check_trigger()]
    accelerator.set_trigger()
    return [*seen, accelerator.check_trigger(), accelerator.check_trigger()]


@pytest.mark.parametrize("size", [1, 2])
def test_a_trigger_of_one_process_is_seen_by_all_once(world: MakePool, size: int) -> None:
    """S106: for a loop that has to end on all processes when it ends on one."""
    assert world(size).run(triggers) == [[False, True, False, True, False]] * size


def trigger_without_tensors() -> list[bool]:
    accelerator = Accelerator(cpu=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather", "broadcast"):
            patch.delattr(TorchDist, name)
        if accelerator.is_main_process:
            accelerator.set_trigger()
        return [accelerator.check_trigger(), accelerator.check_trigger()]


def test_a_trigger_is_asked_for_between_hosts_only(world: MakePool) -> None:
    """No device waits for it, nor the host for a device."""
    assert world(2).run(trigger_without_tensors) == [[True, False]] * 2


# Traces


def profiled(folder: Path) -> tuple[list[int], str]:
    handler = ProfileKwargs(activities=["cpu"], record_shapes=True, output_trace_dir=folder / "usual")
    accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])
    model = accelerator.prepare(Mlp())
    with accelerator.profile() as profiler:
        accelerator.backward(model(batch(0, 0)[0]).sum())
    assert any(event.key == "aten::addmm" for event in profiler.key_averages())
    ready: list[int] = []
    stepwise = ProfileKwargs(
        schedule_option={"wait": 1, "warmup": 1, "active": 1, "repeat": 1},
        on_trace_ready=lambda traced: ready.append(traced.step_num),
        output_trace_dir=folder / "stepwise",
    )
    with accelerator.profile(stepwise) as profiler:
        for step in range(4):
            model(batch(step, 0)[0])
            profiler.step()
    nowhere = accelerator.profile(ProfileKwargs())
    with nowhere:
        model(batch(0, 0)[0])
    with pytest.raises(ValueError, match="activities") as refusal, accelerator.profile(ProfileKwargs(["cpu", "tpu"])):
        pass
    return ready, str(refusal.value)


@pytest.mark.parametrize("size", [1, 2])
def test_each_process_writes_a_trace(world: MakePool, tmp_path: Path, size: int) -> None:
    """S107: the handler of the Accelerator, or one of the block's own; activities that torch lacks are refused."""
    for ready, said in world(size).run(profiled, tmp_path):
        assert ready == [3]
        assert "activities=['tpu']: expected some of " in said
        assert "cpu" in said
    names = [f"profile_{rank}.json" for rank in range(size)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stepwise", "usual"]
    for folder in ("usual", "stepwise"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == names
    for name in names:
        events = json.loads((tmp_path / "usual" / name).read_text())["traceEvents"]
        assert any(event.get("name") == "aten::addmm" for event in events)


# Local steps

LOCAL_STEPS = 7


def local(every: int, enabled: bool, accumulation: int) -> list[Weights]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model = Mlp(dtype=torch.float64)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    found = []
    with LocalSGD(accelerator, model, every, enabled=enabled) as meeting:
        for step in range(LOCAL_STEPS * accumulation):
            inputs, targets = batch(step, accelerator.process_index, torch.float64)
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
                meeting.step()
            if accelerator.sync_gradients:
                found.append(copied(accelerator.unwrap_model(model)))
    found.append(copied(accelerator.unwrap_model(model)))
    return found


def local_plain(every: int, accumulation: int, ranks: int) -> list[list[Weights]]:
    """Hand-written: a model for each rank, whose parameters become those of their mean; `every` 0 never."""
    models = [Mlp(dtype=torch.float64) for _ in range(ranks)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    found: list[list[Weights]] = [[] for _ in models]

    def meet() -> None:
        with torch.no_grad():
            for parts in zip(*(model.parameters() for model in models), strict=True):
                mean = torch.stack(parts).mean(0)
                for part in parts:
                    part.copy_(mean)

    for step in range(LOCAL_STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            for micro in range(accumulation):
                inputs, targets = batch(step * accumulation + micro, rank, torch.float64)
                loss = nn.functional.mse_loss(model(inputs), targets) / accumulation
                loss.backward()  # type: ignore[no-untyped-call] # of torch
            optimizer.step()
        if every and (step + 1) % every == 0:
            meet()
        for rank, model in enumerate(models):
            found[rank].append(copied(model))
    if every:
        meet()
    for rank, model in enumerate(models):
        found[rank].append(copied(model))
    return found


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("every", [1, 3, 100])
def test_local_steps_meet_when_they_are_due(world: MakePool, every: int, accumulation: int) -> None:
    """S100: every k steps, and at the end of the block, whatever is left then."""
    found = world(2).run(local, every, True, accumulation)
    assert_same_numbers(found, local_plain(every, accumulation, 2), atol=1e-12)
    assert_same_numbers(found[0][-1], found[1][-1], atol=0)


def test_local_steps_may_be_switched_off(world: MakePool) -> None:
    """S100: in one process there is nobody to meet; switched off, gradients travel with each step."""
    assert_same_numbers(world(1).run(local, 3, True, 1), local_plain(0, 1, 1), atol=1e-12)
    one, other = world(2).run(local, 3, False, 1)
    assert_same_numbers(one, other, atol=0)
    model = Mlp(dtype=torch.float64)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(LOCAL_STEPS):
        parts = zip(batch(step, 0, torch.float64), batch(step, 1, torch.float64), strict=True)
        inputs, targets = (torch.cat(part) for part in parts)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call] # of torch
        optimizer.step()
    assert_same_numbers(one[-1], copied(model), atol=1e-12)
