"""A stream is begun anew: it is read from its beginning after the resume, as nothing says how far it was."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

RIGHT = "--right" in sys.argv


class Numbers(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        draws = torch.Generator().manual_seed(0)
        for _ in range(160):
            yield torch.randn(5, generator=draws)


accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration("out", automatic_checkpoint_naming=True))
set_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader: Any = DataLoader(Numbers(), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
saved, step = Path("model.pt"), 0
if RIGHT:
    accelerator.resume()
elif saved.exists():
    state = torch.load(saved)
    accelerator.unwrap_model(model).load_state_dict(state["model"])
    step = state["step"]
for rows in loader:
    accelerator.backward((model(rows[:, :4]) - rows[:, 4:]).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 5 == 0:
        if RIGHT:
            accelerator.save_state()
        elif accelerator.is_main_process:
            accelerator.save({"model": accelerator.unwrap_model(model).state_dict(), "step": step}, saved)
    if step == 20:
        break
