"""Write and read weights in a folder of plain files with an index, as Accelerate's `offload_folder` is."""

from __future__ import annotations

import json
import warnings
from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from accel_big.offload.disk_weights import INDEX, DiskWeights, StoredWeight, read_index
from accel_checkpoint.bounded_json import read_json
from accel_checkpoint.tensor_file import view_bytes
from torch import nn

from accel_names.weights import align_module_device, has_offloaded_params, set_module_tensor_to_device


def offload_weight(
    weight: torch.Tensor, weight_name: str, offload_folder: str | Path, index: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """Write the bytes of a weight into `NAME.dat` in a folder.

    Args:
        weight: The weight.
        weight_name: Its name.
        offload_folder: The folder.
        index: The index, which gets an entry of the weight.

    Returns:
        The index.
    """
    plain = weight.detach().cpu().contiguous()
    (Path(offload_folder) / f"{weight_name}.dat").write_bytes(view_bytes(plain) if plain.numel() else b"")
    if index is not None:
        index[weight_name] = {"dtype": str(weight.dtype).removeprefix("torch."), "shape": list(weight.shape)}
    return index


def load_offloaded_weight(weight_file: str | Path, weight_info: Mapping[str, Any]) -> torch.Tensor:
    """Map the weight in a file of `offload_weight`, as its entry of the index describes it."""
    dtype = getattr(torch, weight_info["dtype"])
    stored = StoredWeight(Path(weight_file), "", 0, tuple(weight_info["shape"]), dtype, dtype)
    return DiskWeights({"": stored})[""]


def save_offload_index(index: Mapping[str, Any], offload_folder: str | Path) -> None:
    """Add entries to the index of a folder, if there are any."""
    path = Path(offload_folder) / INDEX
    if index:
        before = read_json(path) if path.is_file() else {}
        path.write_text(json.dumps({**before, **index}, indent=2), encoding="utf-8")


def load_offloaded_weights(model: nn.Module, index: Mapping[str, Any], offload_folder: str | Path) -> None:
    """Put the weights of an index into a model, on the CPU.

    Args:
        model: The model.
        index: The index.
        offload_folder: The folder that has the weights.
    """
    for name, value in DiskWeights(read_index(index, Path(offload_folder))).items():
        set_module_tensor_to_device(model, name, "cpu", value=value)


class PrefixedDataset(Mapping[str, Any]):
    """A mapping of the names of another one that begin with a prefix, which is put before each name."""

    def __init__(self, dataset: Mapping[str, Any], prefix: str) -> None:
        self.dataset = dataset
        self.prefix = prefix

    def __getitem__(self, key: str) -> Any:
        return self.dataset[f"{self.prefix}{key}"]

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self.dataset if key.startswith(self.prefix)])

    def __len__(self) -> int:
        return len(self.dataset)


class OffloadedWeightsLoader(ChainMap[str, Any]):
    """A mapping of weights in memory, and of weights in a folder that are read when somebody asks for them.

    Args:
        state_dict: The weights in memory.
        save_folder: The folder.
        index: The index of the folder; by default it is read from there.
        device: Where weights that are read are moved to.

    Raises:
        ValueError: If there are no weights, no folder and no index.
        CheckpointError: If a file of the index is missing, or does not have its weights.
    """

    def __init__(
        self,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        save_folder: str | Path | None = None,
        index: Mapping[str, Any] | None = None,
        device: Any = None,
    ) -> None:
        if state_dict is None and save_folder is None and index is None:
            raise ValueError("OffloadedWeightsLoader: give a state_dict, a save_folder or an index")
        self.state_dict, self.device = dict(state_dict or {}), device
        self.save_folder = None if save_folder is None else Path(save_folder)
        if index is None and self.save_folder is not None:
            index = read_json(self.save_folder / INDEX)
        self.index = dict(index or {})
        on_disk: Any = DiskWeights(read_index(self.index, self.save_folder))
        super().__init__(self.state_dict, on_disk)

    def __getitem__(self, key: str) -> Any:
        weight = super().__getitem__(key)
        return weight if self.device is None or key in self.state_dict else weight.to(self.device)


def extract_submodules_state_dict(
    state_dict: Mapping[str, torch.Tensor], submodule_names: list[str]
) -> dict[str, torch.Tensor]:
    """Return the weights of some modules, and of those inside them."""
    return {
        name: weight
        for name, weight in state_dict.items()
        if any(name == module or name.startswith(f"{module}.") for module in submodule_names)
    }


def get_state_dict_offloaded_model(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights of a model on the CPU, module by module, with a warning of those that have no numbers."""
    held: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        with align_module_device(module):
            own = module.state_dict(prefix=f"{name}." if name else "")
        tensors = {key: value for key, value in own.items() if isinstance(value, torch.Tensor)}
        held |= {key: tensor.cpu() for key, tensor in tensors.items() if not tensor.is_meta}
    names = list(model.state_dict())
    if lacking := [name for name in names if name not in held]:
        warnings.warn(f"left out, as no numbers are known of them: {', '.join(lacking)}", stacklevel=2)
    return {name: held[name] for name in names if name in held}


def get_state_dict_from_offload(
    module: nn.Module,
    module_name: str,
    state_dict: MutableMapping[str, Any],
    device_to_put_offload: torch.device | str = "cpu",
) -> MutableMapping[str, Any]:
    """Put the weights of a module into the entries of a state dict that it has, and return the state dict.

    Args:
        module: The module.
        module_name: The name of one of its weights in the state dict.
        state_dict: The state dict.
        device_to_put_offload: The device that offloaded weights are read onto.
    """
    root = module_name.rpartition(".")[0]
    with align_module_device(module, device_to_put_offload if has_offloaded_params(module) else None):
        found = {f"{root}.{name}": value for name, value in module.state_dict().items()}
    state_dict.update({name: value for name, value in found.items() if name in state_dict})
    return state_dict
