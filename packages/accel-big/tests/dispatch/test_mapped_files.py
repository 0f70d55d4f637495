"""Weights on disk stay mapped into memory, as far as memory is allowed."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from accel_big import disk_offload, load_checkpoint_and_dispatch
from accel_checkpoint import save_weights
from safetensors.torch import save_file
from torch import nn

LAYER = 64 * 64 * 4
MAP = {str(layer): "disk" for layer in range(4)}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files stay mapped on Linux only")


class Layer(nn.Linear):
    """Keeps the weights of each forward: as long as they are there, new ones have a new place."""

    def __init__(self) -> None:
        super().__init__(64, 64, bias=False)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.weight.detach())
        return super().forward(x)


def make() -> nn.Sequential:
    return nn.Sequential(*(Layer() for _ in range(4)))


def places(model: nn.Sequential) -> list[int]:
    """In how many places the weights of each layer have been."""
    return [len({tensor.data_ptr() for tensor in layer.seen}) for layer in model if isinstance(layer, Layer)]


def dispatched(folder: Path, whole: nn.Module, allowed: int | None, dtype: torch.dtype | None = None) -> nn.Sequential:
    save_weights(whole.state_dict(), folder)
    with torch.device("meta"):
        model = make()
    memory: dict[int | str, int | str] | None = None if allowed is None else {"cpu": allowed}
    load_checkpoint_and_dispatch(model, folder, MAP, memory, dtype=dtype)
    x = torch.ones(2, 64, dtype=dtype)
    for _ in range(4):
        with torch.no_grad():
            assert torch.equal(model(x), whole.to(dtype)(x))
        assert all(parameter.is_meta for parameter in model.parameters())
    return model


@pytest.mark.parametrize(("allowed", "stay"), [(0, 0), (3 * LAYER, 2), (5 * LAYER, 4), (None, 4)])
def test_as_many_layers_stay_mapped_as_memory_allows(tmp_path: Path, allowed: int | None, stay: int) -> None:
    """S144: beside them there is room for the layer that computes."""
    model = dispatched(tmp_path, make(), allowed)
    assert places(model) == [1] * stay + [4] * (4 - stay)


def test_copies_do_not_stay(tmp_path: Path) -> None:
    """Pages of files go when the system needs memory; numbers in another dtype would not."""
    assert places(dispatched(tmp_path, make(), None, torch.float64)) == [4] * 4


@pytest.mark.parametrize(("allowed", "stay"), [(3 * LAYER, 2), (None, 0)])
@pytest.mark.parametrize("shift", range(0, 64, 8))
def test_numbers_anywhere_in_a_file_make_the_same_products(
    tmp_path: Path, shift: int, allowed: int | None, stay: int
) -> None:
    """Products with one row are summed in an order that the address decides."""
    whole = make()
    kept = {name: tensor.detach() for name, tensor in whole.named_parameters()}
    path = tmp_path / "model.safetensors"
    save_file(kept, path, metadata={"format": "pt", "x": "-" * shift})
    with torch.device("meta"):
        model = make()
    load_checkpoint_and_dispatch(model, path, MAP, None if allowed is None else {"cpu": allowed})
    rows = torch.randn(40, 1, 64)
    with torch.no_grad():
        assert all(torch.equal(model(row), whole(row)) for row in rows)
        assert all(torch.equal(model(row), whole(row)) for row in rows)
    begin = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert [place == 1 for place in places(model)] == [True] * (4 if begin % 64 == 0 and allowed is None else stay) + [
        False
    ] * (0 if begin % 64 == 0 and allowed is None else 4 - stay)


def test_a_copy_of_the_model_maps_its_own(tmp_path: Path) -> None:
    twin = copy.deepcopy(dispatched(tmp_path, make(), 3 * LAYER))
    for layer in twin:
        layer.seen.clear()  # type: ignore[operator, union-attr]
    for _ in range(4):
        with torch.no_grad():
            twin(torch.ones(2, 64))
    assert places(twin) == [1, 1, 4, 4]


def test_what_is_written_into_the_state_dict_does_not_reach_the_model(tmp_path: Path) -> None:
    whole = make()
    model = disk_offload(copy.deepcopy(whole), tmp_path)
    x = torch.ones(2, 64)
    with torch.no_grad():
        model(x)
        model.state_dict()["0.weight"].zero_()
        assert torch.equal(model(x), whole(x))
