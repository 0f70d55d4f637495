"""Logs to a tracker of its own, as scripts for Accelerate do it."""

import json
import os

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process
from torch import nn
from torch.utils.data import DataLoader


class Lines(GeneralTracker):
    """Writes a line for each call."""

    name = "lines"
    requires_logging_directory = True

    @on_main_process
    def __init__(self, run_name, logging_dir):
        super().__init__()
        os.makedirs(logging_dir, exist_ok=True)
        self.path = os.path.join(logging_dir, f"{run_name}.jsonl")
        self.file = open(self.path, "w")  # noqa: SIM115 (closed by finish)

    @property
    def tracker(self):
        return self.file

    @on_main_process
    def store_init_configuration(self, values):
        self.file.write(json.dumps({"config": values}) + "\n")

    @on_main_process
    def log(self, values, step=None, **kwargs):
        self.file.write(json.dumps({"step": step, **values}) + "\n")

    @on_main_process
    def finish(self):
        self.file.close()


def main(folder="runs"):
    accelerator = Accelerator(log_with=Lines("idiom", folder), project_dir=folder)
    accelerator.init_trackers("idiom", config={"lr": 0.1})
    torch.manual_seed(0)
    model, data = nn.Linear(2, 1), torch.randn(32, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8 // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"train_loss": accelerator.reduce(loss.detach(), reduction="mean").item()}, step=step)
    accelerator.end_training()
    with open(os.path.join(folder, "idiom.jsonl")) as file:
        return {"lines": [json.loads(line) for line in file]}


if __name__ == "__main__":
    print(main())
