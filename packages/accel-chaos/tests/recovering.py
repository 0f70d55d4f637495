"""A script that recovers from every fault: it saves each few steps, stops if it is asked to, and evaluates."""

import argparse
from typing import Any

import torch
from accel import Accelerator, FullyShardedDataParallelPlugin, ProjectConfiguration
from accel.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--save_every", type=int, default=5)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--sharded", action="store_true")
parser.add_argument(
    "--samples", type=int, default=96, help="samples, of which the last that fill no batch are left out"
)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--output", default="out")
arguments = parser.parse_args()

project = ProjectConfiguration(
    arguments.output, automatic_checkpoint_naming=True, total_limit=2, stop_signals=("SIGTERM",)
)
plugin = FullyShardedDataParallelPlugin() if arguments.sharded else None
accelerator = Accelerator(cpu=True, split_batches=True, project_config=project, fsdp_plugin=plugin)
set_seed(0)
data = TensorDataset(*(torch.randn(arguments.samples, width, dtype=torch.float64) for width in (8, 4)))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(arguments.dropout), nn.Linear(16, 4)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
# an evaluation that a resume leaves out must not have drawn from what trains
test = DataLoader(data, batch_size=48, generator=torch.Generator())
loader: Any = DataLoader(data, batch_size=8, shuffle=True, num_workers=arguments.workers, drop_last=True)
model, optimizer, loader, test = accelerator.prepare(model, optimizer, loader, test)
scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9))
accelerator.resume()
step = 0
for _ in range(loader.iteration, arguments.epochs):
    model.train()
    for inputs, targets in loader:
        accelerator.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if arguments.save_every and step % arguments.save_every == 0:
            accelerator.save_state()
        if accelerator.stop_requested():
            accelerator.save_and_stop()
    model.eval()
    with torch.no_grad():
        for inputs, _ in test:
            model(inputs)
accelerator.end_training()
