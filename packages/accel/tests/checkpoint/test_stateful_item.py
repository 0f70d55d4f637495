"""What a script registers to be saved with everything else, and hooks that save and load by themselves."""

import json
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from accel import Accelerator
from accel_checkpoint import CheckpointError, read_manifest, verify
from accel_testing import MakePool, RankFailure
from registered_objects import Box
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import SGD


class Proud(Box):
    """Something that refuses to load."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.value == "proud":
            raise ValueError("I load nothing")
        super().load_state_dict(state)


class Shy(Box):
    def state_dict(self) -> dict[str, Any]:
        raise LookupError("I say nothing")


VALUES = [
    3,
    -0.0,
    float("inf"),
    10**40,
    "text \U0001f600 \x00",
    b"\x00\xff",
    None,
    [1, (2, [3.5, True])],
    {1: "one", (2, 3): "two", "$tuple": []},
    OrderedDict(b=1, a=2),
    Counter("abca"),
    torch.Size([2, 3]),
    torch.float16,
    torch.device("cpu"),
    1 + 2j,
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_come_back_as_they_were(value: Any, tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    box = Box(value)
    accelerator.register_for_checkpointing(box)
    folder = accelerator.save_state(tmp_path / "saved")
    box.value = "another"
    accelerator.load_state(folder)
    assert (type(box.value), box.value) == (type(value), value)


def test_tensors_and_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    value: dict[str, Any] = {
        "weights": [torch.randn(2, 3, dtype=torch.bfloat16), torch.tensor(True), torch.empty(0, 4)],
        "view": torch.arange(6).view(2, 3).T,
        "array": numpy.arange(6, dtype=numpy.int16).reshape(2, 3),
        "number": numpy.float64(0.1),
        "complex": torch.tensor([1 + 2j], dtype=torch.complex128),
    }
    box = Box(value)
    accelerator.register_for_checkpointing(things=box)
    folder = accelerator.save_state(tmp_path / "saved")
    accelerator.load_state(folder)
    assert box.value is not value
    for one, other in zip(box.value["weights"], value["weights"], strict=True):
        assert one.dtype == other.dtype
        assert one.equal(other)
    assert box.value["view"].equal(value["view"])
    assert box.value["array"].dtype == numpy.int16
    assert (box.value["array"] == value["array"]).all()
    assert type(box.value["number"]) is numpy.float64
    assert box.value["number"] == 0.1
    assert box.value["complex"].dtype == torch.complex128
    assert box.value["complex"].equal(value["complex"])


def test_each_object_has_a_name_and_no_two_meet(tmp_path: Path) -> None:
    """S94: that of its class and a number, or the one it is given; also where names have dots."""
    accelerator = Accelerator(cpu=True)
    boxes = [Box(torch.full((2,), float(number))) for number in range(6)]
    accelerator.register_for_checkpointing(boxes[0], boxes[1])
    accelerator.register_for_checkpointing(boxes[2], named=boxes[3])
    boxes[4].value = {"c": boxes[4].value}
    accelerator.register_for_checkpointing(**{"a.value": boxes[5], "a": boxes[4]})
    boxes[5].state_dict = lambda: {"c": boxes[5].value}  # type: ignore[method-assign] # a user may
    # a user may
    boxes[5].load_state_dict = lambda state: setattr(boxes[5], "value", state["c"])  # type: ignore[method-assign]
    folder = accelerator.save_state(tmp_path / "saved")
    names = {name for name in read_manifest(folder).items if name.startswith("object:")}
    assert names == {f"object:{one}" for one in ("Box", "Box_1", "Box_2", "named", "a", "a.value")}
    for box in boxes:
        box.value = None
    accelerator.load_state(folder)
    boxes[4].value = boxes[4].value["c"]
    assert [box.value.tolist() for box in boxes] == [[float(number)] * 2 for number in range(6)]


def test_objects_without_a_state_are_refused_all_at_once() -> None:
    """S94: those that have one are not registered either."""
    accelerator = Accelerator(cpu=True)
    with pytest.raises(ValueError, match=r"Item at index 0 \(a Tensor\), Item at index 2 \(a type\), odd \(a int\)"):
        accelerator.register_for_checkpointing(torch.ones(1), Box(), Box, odd=3)
    accelerator.register_for_checkpointing(box=Box())
    with pytest.raises(ValueError, match="box, which is the name of another object"):
        accelerator.register_for_checkpointing(box=Box())


@pytest.mark.parametrize("value", [object(), {"f": print}, [Box()], torch.ones(2).to_sparse(), {"deep": [{1: {2}}]}])
def test_a_state_that_only_pickle_could_write_is_refused_by_its_path(value: Any, tmp_path: Path) -> None:
    """T12: all of them at once, and nothing is left."""
    accelerator = Accelerator(cpu=True)
    accelerator.register_for_checkpointing(Shy(), box=Box(value), good=Box(1))
    with pytest.raises(CheckpointError, match=r"object:box.*value") as raised:
        accelerator.save_state(tmp_path / "saved")
    assert "the state_dict of object:Shy failed: LookupError: I say nothing" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_refuses_to_load_leaves_everything_as_it_was(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    first, proud = Box(1), Proud(1)
    accelerator.register_for_checkpointing(first, proud)
    folder = accelerator.save_state(tmp_path / "saved")
    nn.init.ones_(model.weight)
    first.value, proud.value = 2, "proud"
    with pytest.raises((ValueError, CheckpointError), match="I load nothing"):
        accelerator.load_state(folder)
    assert (first.value, proud.value, model.weight.sum().item()) == (2, "proud", 4.0)


Models = list[nn.Module]


def saves_by_itself(accelerator: Accelerator, kept: int = 0) -> Callable[[Models, list[dict[str, Any]], str], None]:
    """What scripts of diffusers do: each model in a folder of its own."""

    def hook(models: Models, weights: list[dict[str, Any]], folder: str) -> None:
        for number, model in enumerate(models):
            if accelerator.is_main_process:
                inner = Path(folder) / f"part{number}"
                inner.mkdir(parents=True)
                save_file(model.state_dict(), inner / "diffusion.safetensors")
                (inner / "config.json").write_text(json.dumps({"number": number}))
            if len(weights) > kept:
                weights.pop()

    return hook


def loads_by_itself(models: Models, folder: str) -> None:
    for _ in range(len(models)):
        model = models.pop()
        model.load_state_dict(load_file(Path(folder) / f"part{len(models)}" / "diffusion.safetensors"))


def with_hooks(folder: str) -> list[float]:
    accelerator = Accelerator(cpu=True)
    models = [nn.Linear(2, 2), nn.Linear(3, 3)]
    ready: Any = accelerator.prepare(*models, *(SGD(one.parameters(), lr=0.1, momentum=0.9) for one in models))
    accelerator.register_save_state_pre_hook(saves_by_itself(accelerator))
    accelerator.register_load_state_pre_hook(loads_by_itself)
    before = [one.weight.sum().item() for one in models]
    place = accelerator.save_state(folder, asynchronous=True)
    for one in models:
        nn.init.zeros_(one.weight)
    accelerator.load_state(place)
    del ready
    return before + [one.weight.sum().item() for one in models]


def test_hooks_that_save_and_load_models_by_themselves(world: MakePool, tmp_path: Path) -> None:
    """As in scripts of diffusers; what they write is part of the checkpoint, and verified."""
    folder = tmp_path / "saved"
    for found in world(2).run(with_hooks, str(folder)):
        assert found[:2] == pytest.approx(found[2:])
    manifest = read_manifest(folder)
    assert {"part0/diffusion.safetensors", "part1/config.json"} <= set(manifest.files)
    assert not [name for name in manifest.files if name.startswith("model")]
    assert verify(folder, manifest).problems == []
    (folder / "part1" / "config.json").write_text('{"number": 2}')
    assert ["part1/config.json" in one for one in verify(folder, manifest).problems] == [True]


def test_a_hook_that_is_removed_is_not_called(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    calls: list[str] = []
    saving = accelerator.register_save_state_pre_hook(lambda models, weights, folder: calls.append("save"))
    loading = accelerator.register_load_state_pre_hook(lambda models, folder: calls.append("load"))
    folder = accelerator.save_state(tmp_path / "saved")
    accelerator.load_state(folder)
    assert calls == ["save", "load"]
    saving.remove()
    loading.remove()
    accelerator.load_state(accelerator.save_state(tmp_path / "saved"))
    assert calls == ["save", "load"]
    assert model.weight.equal(load_file(folder / "model.safetensors")["weight"])


def test_weights_that_a_hook_has_replaced_are_what_is_saved(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))

    def hook(models: Models, weights: list[dict[str, Any]], folder: str) -> None:
        weights[0] = {name: torch.full_like(one, 7.0) for name, one in weights[0].items()}

    accelerator.register_save_state_pre_hook(hook)
    folder = accelerator.save_state(tmp_path / "saved")
    assert load_file(folder / "model.safetensors")["weight"].tolist() == [[7.0] * 2] * 2


def test_a_model_that_is_neither_in_the_checkpoint_nor_a_hooks_is_an_error(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: weights.clear())
    accelerator.register_load_state_pre_hook(lambda models, folder: None)
    folder = accelerator.save_state(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="model is not in the checkpoint"):
        accelerator.load_state(folder)


def broken(folder: str, what: str, rank: int) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))
    accelerator.save_state(folder)

    def hook(models: Models, weights: Any, place: Any = None) -> None:
        if what == "link" and accelerator.is_main_process:
            (Path(place) / "linked").symlink_to("/etc/hostname")
        if what == "same name" and accelerator.is_main_process:
            (Path(place) / "model.safetensors").write_text("mine")
        if what in ("save", "load") and accelerator.process_index == rank:
            raise LookupError("the hook's own")

    if what == "load":
        accelerator.register_load_state_pre_hook(hook)
        accelerator.load_state(folder)
    else:
        accelerator.register_save_state_pre_hook(hook)
        accelerator.save_state(folder)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("what", ["save", "load"])
def test_a_hook_that_fails_on_one_rank_is_an_error_on_all(
    what: str, rank: int, world: MakePool, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    with pytest.raises(RankFailure) as failure:
        world(2).run(broken, str(folder), what, rank)
    errors = [str(error) for error in failure.value.errors.values()]
    assert ["the hook's own" in error for error in errors] == [True, True], errors
    assert [one.name for one in tmp_path.iterdir()] == ["saved"], "a stage is left"
    assert verify(folder, read_manifest(folder)).problems == []


@pytest.mark.parametrize(("what", "said"), [("link", "linked"), ("same name", "model.safetensors")])
def test_what_a_hook_may_not_write_is_named(what: str, said: str, world: MakePool, tmp_path: Path) -> None:
    """A link, and a file in the place of one of the checkpoint."""
    with pytest.raises(RankFailure) as failure:
        world(2).run(broken, str(tmp_path / "saved"), what, 0)
    assert [type(error) for error in failure.value.errors.values()] == [CheckpointError] * 2
    assert all(said in str(error) for error in failure.value.errors.values())
    assert [one.name for one in tmp_path.iterdir()] == ["saved"]
