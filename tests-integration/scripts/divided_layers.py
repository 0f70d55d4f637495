"""Trains a small network whose layers may be divided: the launcher says over how many processes."""

import torch
from accel import Accelerator, ParallelismConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(parallelism_config=ParallelismConfig(tp_plan={"up": "colwise", "down": "rowwise"}))
torch.manual_seed(0)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.down(torch.tanh(self.up(inputs)))
        return outputs


model = Network()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
inputs = torch.randn(64, 8)
data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
for _epoch in range(3):
    for features, targets in data:
        loss = nn.functional.mse_loss(model(features), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
with torch.no_grad():
    results = [accelerator.gather_for_metrics(model(features)) for features, _ in data]
total = accelerator.reduce(torch.cat(results).abs().sum(), "mean")
if accelerator.is_main_process:
    rate = schedule.get_last_lr()[0]
    print(f"loss {loss.item():.4f}, {len(torch.cat(results))} outputs of {total.item():.3f}, rate {rate:.4f}")
