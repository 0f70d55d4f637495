"""Checkpoints that Accelerate wrote: gone on from, and nothing of them is run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel_checkpoint import CheckpointError
from accel_state import release
from accel_testing import MakePool
from registered_objects import Evil
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR


class Count:
    """What a script registers."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "tensor": torch.ones(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["tensor"].tolist() == [1.0, 1.0]
        self.steps = state["steps"]


def plain(width: int = 4, groups: int = 1, seed: int = 0) -> tuple[nn.Module, Optimizer, CosineAnnealingLR]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 4))
    parameters = list(model.parameters())
    each = len(parameters) // groups
    optimizer = AdamW([{"params": parameters[at : at + each]} for at in range(0, len(parameters), each)], lr=0.1)
    return model, optimizer, CosineAnnealingLR(optimizer, 20)


def step(model: Any, optimizer: Any, schedule: Any, steps: int, backward: Any = Tensor.backward) -> list[Tensor]:
    """By hand, with a plain loop."""
    for _ in range(steps):
        backward(model(torch.ones(2, 4)).square().sum())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return [one.detach().clone() for one in model.parameters()]


def written(folder: Path, weights: str = "safetensors", scaler: bool = False) -> list[Tensor]:
    """A folder in the layout of Accelerate 1.15; the weights that a plain loop has three steps later."""
    folder.mkdir()
    model, optimizer, schedule = plain(seed=1)
    step(model, optimizer, schedule, 5)
    state = model.state_dict()
    if weights == "safetensors":
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    elif weights == "bin":
        torch.save(state, folder / "pytorch_model.bin")
    else:
        files = {"model-00001-of-00002.safetensors": ["0.weight", "0.bias"]}
        files["model-00002-of-00002.safetensors"] = ["1.weight", "1.bias"]
        for file, names in files.items():
            save_file({name: state[name] for name in names}, folder / file)
        index = {"metadata": {}, "weight_map": {name: file for file, names in files.items() for name in names}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(optimizer.state_dict(), folder / "optimizer.bin")
    torch.save(schedule.state_dict(), folder / "scheduler.bin")
    torch.save({"random_state": (3, (1, 2), None)}, folder / "random_states_0.pkl")
    torch.save(Count(5).state_dict(), folder / "custom_checkpoint_0.pkl")
    if scaler:
        torch.save(torch.amp.GradScaler("cpu", init_scale=128.0).state_dict(), folder / "scaler.pt")
    return step(model, optimizer, schedule, 3)


def begun(**settings: Any) -> tuple[Accelerator, list[Any], Count]:
    release()
    accelerator, count = Accelerator(cpu=True, scheduler_once_per_step=True), Count()
    ready = list(accelerator.prepare(*plain(**settings)))
    accelerator.register_for_checkpointing(count)
    return accelerator, ready, count


@pytest.mark.parametrize("weights", ["safetensors", "bin", "shards"])
def test_training_goes_on_from_it_as_if_it_had_not_stopped(
    weights: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = written(tmp_path / "theirs", weights)
    accelerator, ready, count = begun()
    assert accelerator.load_state(tmp_path / "theirs") == tmp_path / "theirs"
    assert count.steps == 5
    assert "random numbers, which it pickles, and places in loaders do not" in caplog.text
    found = step(ready[0], ready[1], ready[2], 3, accelerator.backward)
    assert all(map(torch.equal, found, expected))
    ours = accelerator.save_state(tmp_path / "ours")
    accelerator.load_state(ours)


def of_two_ranks(folder: str) -> list[Tensor]:
    accelerator, ready, _ = begun()
    accelerator.load_state(folder)
    return step(ready[0], ready[1], ready[2], 3, accelerator.backward)


def test_two_processes_go_on_from_it(world: MakePool, tmp_path: Path) -> None:
    expected = written(tmp_path / "theirs")
    for found in world(2).run(of_two_ranks, str(tmp_path / "theirs")):
        assert all(map(torch.allclose, found, expected))


def test_averages_get_the_dtype_of_the_weights_that_are_here(tmp_path: Path) -> None:
    """torch converts what it loads, and keeps what belongs to no parameter."""
    written(tmp_path / "state")
    file = tmp_path / "state" / "optimizer.bin"
    state = torch.load(file)
    for entry in state["state"].values():
        entry["exp_avg"] = entry["exp_avg"].bfloat16()
    state["state"]["of all"] = 3
    torch.save(state, file)
    accelerator, (model, optimizer, schedule), _ = begun()
    accelerator.load_state(tmp_path / "state")
    averages = [entry["exp_avg"] for entry in optimizer.state.values() if isinstance(entry, dict)]
    assert {average.dtype for average in averages} == {torch.float32}
    step(model, optimizer, schedule, 1, lambda loss: accelerator.backward(loss))


def test_the_scale_of_fp16_goes_on(tmp_path: Path) -> None:
    written(tmp_path / "theirs", scaler=True)
    release()
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.prepare(*plain())
    accelerator.register_for_checkpointing(Count())
    accelerator.load_state(tmp_path / "theirs")
    assert accelerator.scaler is not None
    assert accelerator.scaler.get_scale() == 128.0


Damage = Callable[[Path], None]


def evil(name: str) -> Damage:
    return lambda folder: torch.save(Evil(folder.parent / "executed"), folder / name)


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Damage:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def saved(name: str, value: Any) -> Damage:
    return lambda folder: torch.save(value, folder / name)


def other_weights(names: dict[str, tuple[int, ...]]) -> Damage:
    weights = {name: torch.zeros(shape) for name, shape in names.items()}
    return lambda folder: save_file(weights, folder / "model.safetensors")


SHAPES: dict[str, tuple[int, ...]] = {"0.weight": (4, 4), "0.bias": (4,), "1.weight": (4, 4), "1.bias": (4,)}
REFUSED: dict[str, tuple[Damage, str]] = {
    "code in an object": (evil("custom_checkpoint_0.pkl"), "custom_checkpoint_0.pkl"),
    "code in the optimizer": (evil("optimizer.bin"), "optimizer.bin"),
    "code in the schedule": (evil("scheduler.bin"), "scheduler.bin"),
    "no optimizer": (without("optimizer.bin"), "optimizer.bin is missing"),
    "no schedule": (without("scheduler.bin"), "scheduler.bin is missing"),
    "no weights": (without("model.safetensors"), "no weights of model 0"),
    "cut weights": (cut("model.safetensors"), "model.safetensors"),
    "cut optimizer": (cut("optimizer.bin"), "optimizer.bin"),
    "an object too many": (saved("custom_checkpoint_1.pkl", {}), "2 registered objects were saved, and 1 are"),
    "no object": (without("custom_checkpoint_0.pkl"), "custom_checkpoint_0.pkl is missing"),
    "a weight too many": (other_weights({**SHAPES, "2.bias": (4,)}), "2.bias"),
    "a weight too few": (other_weights({"0.weight": (4, 4)}), "1.weight"),
    "another shape": (other_weights({**SHAPES, "0.weight": (5, 4)}), "0.weight"),
    "an optimizer that is none": (saved("optimizer.bin", {"some": "thing"}), "optimizer"),
    "a list for an optimizer": (saved("optimizer.bin", [1]), "optimizer"),
    "two groups": (saved("optimizer.bin", plain(groups=2)[1].state_dict()), "groups of [2, 2] parameters"),
    "moments of another shape": (
        saved("optimizer.bin", {**plain()[1].state_dict(), "state": {0: {"exp_avg": torch.ones(3, 9)}}}),
        "optimizer",
    ),
    "a list for a schedule": (saved("scheduler.bin", [1]), "scheduler"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_fit_is_refused_and_neither_loaded_nor_run(kind: str, tmp_path: Path) -> None:
    """T12, fault test 10."""
    folder = tmp_path / "theirs"
    written(folder)
    damage, said = REFUSED[kind]
    damage(folder)
    accelerator, (model, optimizer, schedule), count = begun()
    before = [one.clone() for one in model.parameters()], schedule.scheduler.last_epoch
    with pytest.raises(CheckpointError) as raised:
        accelerator.load_state(folder)
    assert said in str(raised.value)
    assert all(map(torch.equal, model.parameters(), before[0]))
    assert (schedule.scheduler.last_epoch, optimizer.state, count.steps) == (before[1], {}, 0)
    assert not (tmp_path / "executed").exists()


def test_code_in_the_random_states_is_not_run(tmp_path: Path) -> None:
    """They are not read at all."""
    folder = tmp_path / "theirs"
    written(folder)
    evil("random_states_0.pkl")(folder)
    accelerator, _, count = begun()
    accelerator.load_state(folder)
    assert count.steps == 5
    assert not (tmp_path / "executed").exists()


def test_code_in_weights_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    written(folder, "bin")
    evil("pytorch_model.bin")(folder)
    accelerator, _, _ = begun()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        accelerator.load_state(folder)
    assert not (tmp_path / "executed").exists()


def test_all_that_stands_against_it_is_said_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    written(folder)
    (folder / "scheduler.bin").unlink()
    evil("custom_checkpoint_0.pkl")(folder)
    release()
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(4, 4)
    accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    with pytest.raises(CheckpointError) as raised:
        accelerator.load_state(folder)
    for part in (
        "model.safetensors do not fit the model",
        "groups of [4] parameters, and has [2]",
        "1 registered objects",
    ):
        assert part in str(raised.value)


def test_nothing_is_written_over_it(tmp_path: Path) -> None:
    written(tmp_path / "theirs")
    accelerator, _, _ = begun()
    accelerator.load_state(tmp_path / "theirs")
    before = sorted(one.name for one in (tmp_path / "theirs").iterdir())
    with pytest.raises(CheckpointError, match="files that are not of a checkpoint of accel"):
        accelerator.save_state(tmp_path / "theirs")
    assert sorted(one.name for one in (tmp_path / "theirs").iterdir()) == before


class Holder(nn.Module):
    """A model with a part whose name Accelerate's containers have too, and a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)

    def get_extra_state(self) -> Any:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError("there is none")


def test_a_part_that_has_the_name_of_a_container_is_not_taken_for_one(tmp_path: Path) -> None:
    written(tmp_path / "theirs")
    saved = Holder()
    weights = {name: one for name, one in saved.state_dict().items() if isinstance(one, Tensor)}
    save_file(weights, tmp_path / "theirs" / "model.safetensors")
    for name in ("optimizer.bin", "scheduler.bin", "custom_checkpoint_0.pkl"):
        (tmp_path / "theirs" / name).unlink()
    release()
    accelerator, model = Accelerator(cpu=True), Holder()
    accelerator.prepare(model)
    accelerator.load_state(tmp_path / "theirs")
    assert torch.equal(model.module.weight, saved.module.weight)
