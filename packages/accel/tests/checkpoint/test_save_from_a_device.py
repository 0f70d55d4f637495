"""A save copies each byte of the device once, through few pinned buffers, and waits for the device a few times."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator
from saved_files import copied_bytes
from suite.recording_device import DeviceTensor, RecordingDevice
from torch import nn
from torch.optim import AdamW


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_save_stages_each_byte_once(tmp_path: Path, asynchronous: bool) -> None:
    # a checkpoint takes tensors of torch's own classes only
    with RecordingDevice().installed() as gpu, patch("torch.nn.Buffer", DeviceTensor):
        accelerator = Accelerator(cpu=True, device_placement=False)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
        for layer in model:
            for name, parameter in list(layer.named_parameters()):
                setattr(layer, name, nn.Parameter(gpu.put(parameter)))
        for parameter in model.parameters():
            parameter.grad = gpu.put(torch.ones(parameter.shape))
        model, optimizer = accelerator.prepare(model, AdamW(model.parameters(), foreach=True))
        optimizer.step()
        gpu.calls.clear()
        gpu.waits.clear()
        accelerator.save_state(tmp_path / "state", asynchronous=asynchronous)
        accelerator.wait_for_checkpoint()
        size = sum(parameter.nbytes for parameter in model.parameters())
    assert copied_bytes(gpu) == 3 * size  # weights, and two averages of each
    # however many tensors there are: one for each file that is written from the device, one for a copy of all
    assert len(gpu.pinned) == (1 if asynchronous else 2)
    assert {wait.what for wait in gpu.waits} == {"for all work"}
    assert len(gpu.waits) == (2 if asynchronous else 4)
