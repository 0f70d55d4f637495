"""Optimizer steps that fp16 skips are in the record."""

import json
from pathlib import Path

import torch
from accel import Accelerator, GradScalerKwargs


def test_skipped_steps_are_noted(tmp_path: Path) -> None:
    """S132."""
    scale = GradScalerKwargs(init_scale=256)
    accelerator = Accelerator(
        cpu=True, mixed_precision="fp16", log_with="local", project_dir=tmp_path, kwargs_handlers=[scale]
    )
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    accelerator.init_trackers("project")
    for step in range(4):
        loss = model(torch.ones(1, 1)).sum() * (float("inf") if step in (1, 2) else 1.0)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss}, step=step)
    folder = accelerator.get_tracker("local", unwrap=True).folder
    accelerator.end_training()
    story = json.loads((folder / "run.json").read_text())
    assert [event["step"] for event in story["skipped_steps"]] == [0, 1], "after these steps"
