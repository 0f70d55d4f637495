"""Stops on all processes when a process asks for it, as scripts for Accelerate do it."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main(epochs=50):
    accelerator = Accelerator()
    torch.manual_seed(0)
    data = torch.linspace(-1, 1, 32).unsqueeze(1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(data, batch_size=8 // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = 0
    stopped = False
    for _ in range(epochs):
        for batch in loader:
            loss = (model(batch) - 3 * batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if accelerator.is_last_process and loss.item() < 1e-3:
                accelerator.set_trigger()
            if accelerator.check_trigger():
                stopped = True
                break
        if stopped:
            break
    every = accelerator.gather(torch.tensor([steps], device=accelerator.device)).tolist()
    return {"stopped": stopped, "steps": every}


if __name__ == "__main__":
    print(main())
