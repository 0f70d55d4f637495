"""Several XLA devices of one process train as one device does; with --device=xla."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_testing import stretched

SCRIPT = """
import json, sys
from importlib import import_module

import torch
from accel import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

strategy, every, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
accelerator = Accelerator(strategy=strategy, gradient_accumulation_steps=every)
xla, metrics = import_module("torch_xla"), import_module("torch_xla.debug.metrics")


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        return self.head(hidden)


def train(epochs):
    seen = {"losses": [], "compilations": []}
    for _ in range(epochs):
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), (inputs * 3 % 16).flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            seen["losses"].append(loss.item())
            seen["compilations"].append(metrics.metric_data("CompileTime")[0])
    return seen


torch.manual_seed(0)
model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.arange(192).view(48, 4) * 7 % 16), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
before = train(2)
accelerator.save_state(folder)
after = train(1)
accelerator.load_state(folder)
weight = model.blocks[0].weight
told = {
    **before,
    "after": after["losses"],
    "again": train(1)["losses"],
    "tied": model.head.weight is model.embedding.weight,
    "divided": xla._XLAC._get_xla_sharding_spec(weight.data),
    "moment": xla._XLAC._get_xla_sharding_spec(optimizer.state[weight]["exp_avg"]),
}
print("told:" + json.dumps(told))
"""


def trained(folder: Path, strategy: str, devices: int, every: int) -> dict[str, Any]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environ = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    command = [sys.executable, str(script), strategy, str(every), str(folder / f"{strategy}-{every}")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=stretched(300), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("told:")]
    told: dict[str, Any] = json.loads(line.removeprefix("told:"))
    return told


@pytest.mark.device
@pytest.mark.parametrize("every", [1, 2])
def test_four_devices_train_as_one(device: torch.device, tmp_path: Path, every: int) -> None:
    """Losses with clipping and accumulation, a checkpoint, tied weights; nothing is compiled after the second step."""
    if device.type != "xla":
        pytest.skip("needs --device=xla, and torch_xla with the torch that it was built for")
    wanted, found = trained(tmp_path, "single", 1, every), trained(tmp_path, "spmd", 4, every)
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-6)
    assert found["again"] == pytest.approx(found["after"], rel=1e-6)
    assert found["tied"]
    assert found["divided"] == found["moment"] == "{devices=[4,1]0,1,2,3}"
    assert wanted["divided"] == ""
    assert found["compilations"][2 * every] == found["compilations"][-1]


def run_on_a_cpu(*lines: str) -> str:
    text = "\n".join(["from accel import Accelerator", *lines])
    environ = {name: value for name, value in os.environ.items() if name != "PJRT_DEVICE"}
    done = subprocess.run([sys.executable, "-c", text], env=environ, capture_output=True, text=True, check=False)
    return done.stderr


def test_spmd_without_xla_is_refused_with_what_to_do() -> None:
    error = run_on_a_cpu("Accelerator(strategy='spmd', cpu=True)")
    assert "it divides work over XLA devices, and this process is on cpu; set PJRT_DEVICE" in error
