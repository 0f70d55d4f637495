"""Models on the meta device, which holds no numbers."""

from pathlib import Path
from typing import final

import pytest
import torch
from accel_checkpoint import CheckpointError, load_checkpoint_in_model, save_weights
from accel_testing import assert_same_numbers
from safetensors.torch import save_file
from saved_files import model
from torch import nn

NOT_IN_FILES = "on the meta device and missing from the files"


@final
class Tied(nn.Module):
    """A head that is the embedding, a frozen part, and a buffer that is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(3)
        self.norm.weight.requires_grad_(False)


@final
class Rotary(nn.Module):
    """A buffer that is never saved."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("angles", torch.arange(3.0), persistent=False)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("safe", "size"), [(True, "10GB"), (True, 500), (False, "10GB"), (False, 500)])
def test_a_model_on_meta_is_filled_on_the_device_of_the_map(
    tmp_path: Path, device: torch.device, safe: bool, size: int | str, strict: bool
) -> None:
    """Feature row S91."""
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=size, safe_serialization=safe)
    fresh = model(2).to("meta")
    load_checkpoint_in_model(fresh, tmp_path, {"": device}, strict=strict)
    assert {tensor.device.type for tensor in fresh.state_dict().values()} == {device.type}
    assert_same_numbers(fresh.state_dict(), model(1).state_dict(), atol=0)


def test_without_a_device_map_a_model_on_meta_is_refused(tmp_path: Path) -> None:
    save_weights(model(1).state_dict(), tmp_path)
    fresh = model(2)
    fresh.first.to("meta")
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint_in_model(fresh, tmp_path)
    assert str(refused.value) == (
        f"weights from {tmp_path} were to be loaded, but the model is on the meta device, which holds no numbers"
        " (first.weight, first.bias): give device_map={'': device} with the device it should be on"
    )


def test_what_is_missing_for_a_model_on_meta_is_an_error_without_strict(tmp_path: Path) -> None:
    save_weights({"first.weight": torch.ones(24, 8)}, tmp_path)
    fresh = model(2).to("meta")
    with pytest.raises(CheckpointError, match=f"{NOT_IN_FILES}: first.bias, second.weight, second.bias; make the"):
        load_checkpoint_in_model(fresh, tmp_path, {"": "cpu"})
    assert all(tensor.is_meta for tensor in fresh.state_dict().values())


def test_what_is_missing_but_not_on_meta_keeps_its_numbers(tmp_path: Path) -> None:
    save_weights({name: value for name, value in model(1).state_dict().items() if "first" in name}, tmp_path)
    fresh = model(2)
    fresh.first.to("meta")
    with pytest.warns(UserWarning, match="missing from the files: second.weight, second.bias"):
        load_checkpoint_in_model(fresh, tmp_path, {"": "cpu"})
    expected = {name: model(1 if "first" in name else 2).state_dict()[name] for name in model().state_dict()}
    assert_same_numbers(fresh.state_dict(), expected, atol=0)


def test_a_buffer_on_meta_that_is_never_saved_is_an_error(tmp_path: Path) -> None:
    save_weights(Rotary().state_dict(), tmp_path)
    fresh = Rotary().to("meta")
    with pytest.raises(CheckpointError, match=f"{NOT_IN_FILES}: angles; make the model on a real device"):
        load_checkpoint_in_model(fresh, tmp_path, {"": "cpu"})


@pytest.mark.parametrize("aliases", [True, False], ids=["of-accel", "of-other-programs"])
def test_tied_weights_stay_tied_and_buffers_stay_buffers(tmp_path: Path, aliases: bool) -> None:
    source = Tied()
    state = source.state_dict()
    if aliases:
        save_weights(state, tmp_path)
    else:
        save_file({name: t for name, t in state.items() if name != "head.weight"}, tmp_path / "model.safetensors")
    with torch.device("meta"):
        fresh = Tied()
    load_checkpoint_in_model(fresh, tmp_path, {"": "cpu"}, dtype=torch.float64, strict=True)
    assert fresh.head.weight is fresh.embed.weight
    assert isinstance(fresh.norm.weight, nn.Parameter)
    assert not fresh.norm.weight.requires_grad
    assert fresh.norm.bias.requires_grad
    assert fresh.head.weight.dtype == torch.float64
    assert {name for name, _ in fresh.named_buffers()} == {name for name, _ in source.named_buffers()}
    for name, tensor in state.items():
        assert torch.equal(fresh.state_dict()[name], tensor.to(fresh.state_dict()[name].dtype))


def test_weights_on_meta_that_are_not_tied_are_not_taken_for_tied(tmp_path: Path) -> None:
    """All of them have the address 0."""
    save_file({"0.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    fresh = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).to("meta")
    with pytest.raises(CheckpointError, match=f"{NOT_IN_FILES}: 1.weight"):
        load_checkpoint_in_model(fresh, tmp_path, {"": "cpu"})


def test_hooks_of_gradients_stay_on_weights_that_were_on_meta(tmp_path: Path) -> None:
    """As of an optimizer that steps in the backward, made before the weights are loaded."""
    save_weights(Rotary().state_dict(), tmp_path)
    with torch.device("meta"):
        model = nn.ModuleDict({"linear": nn.Linear(2, 2)})
    called: list[torch.Tensor] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(called.append)  # type: ignore[no-untyped-call] # of torch
    load_checkpoint_in_model(model, tmp_path, {"": torch.device("cpu")})
    model["linear"](torch.ones(1, 2)).sum().backward()
    assert {id(parameter) for parameter in called} == {id(parameter) for parameter in model.parameters()}
