"""Trains six steps on two processes, of which one is killed in the fourth step of the first attempt."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from accel import Accelerator, ProjectConfiguration
from torch.utils.data import DataLoader, TensorDataset

folder = Path(sys.argv[1])
accelerator = Accelerator(
    project_dir=folder, project_config=ProjectConfiguration(automatic_checkpoint_naming=True, total_limit=2)
)
rank = accelerator.process_index
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def note(what: str) -> None:
    """Writes a line of what this process does."""
    with (folder / f"rank{rank}").open("a") as file:
        file.write(f"{what}\n")


class Steps:
    """The steps that were made, which the checkpoint keeps."""

    made = 0

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


steps = Steps()
accelerator.register_for_checkpointing(steps)
first = accelerator.resume() is None
if not first:
    note(f"loads step {steps.made}")
for (inputs,) in loader:
    note(f"step {steps.made + 1}")
    if first and steps.made == 3 and rank == 1:
        while "step 4" not in (folder / "rank0").read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    accelerator.backward(model(inputs).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    steps.made += 1
    if steps.made % 2 == 0:
        accelerator.save_state()
        note(f"saves step {steps.made}")
