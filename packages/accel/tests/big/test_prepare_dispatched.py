"""Models whose weights are elsewhere, and training."""

from pathlib import Path

import pytest
import torch
from accel import Accelerator, cpu_offload, disk_offload, dispatch_model
from accel_state.errors import CannotRun
from torch import nn


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))


def test_a_dispatched_model_is_not_trained(tmp_path: Path) -> None:
    """S145: prepare refuses it, and optimizers of its parameters, in words."""
    accelerator = Accelerator(cpu=True)
    for model in (
        cpu_offload(make()),
        disk_offload(make(), tmp_path / "a"),
        dispatch_model(make(), {"0": "cpu", "1": "disk"}, offload_dir=tmp_path / "b"),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(
            CannotRun, match=r"of its weights are offloaded and have no gradients; load it on one device"
        ):
            accelerator.prepare(model, optimizer)
        with pytest.raises(CannotRun, match="of its parameters are offloaded"):
            accelerator.prepare(optimizer)


def test_it_is_evaluated_and_saved(tmp_path: Path) -> None:
    """S144: a model in one place is trained as ever; one that is not is evaluated and saved."""
    accelerator = Accelerator(cpu=True)
    whole, x = make(), torch.ones(2, 3)
    assert accelerator.prepare(dispatch_model(make(), {"": "cpu"})) is not None
    model = accelerator.prepare_model(disk_offload(make(), tmp_path / "o"), evaluation_mode=True)
    with torch.no_grad():
        assert torch.equal(model(x), whole(x))
    accelerator.save_model(model, tmp_path / "saved")
    again = make()
    nn.init.zeros_(again[0].weight)  # type: ignore[arg-type]
    from accel import load_checkpoint_in_model

    load_checkpoint_in_model(again, tmp_path / "saved", strict=True)
    assert torch.equal(again(x), whole(x))
