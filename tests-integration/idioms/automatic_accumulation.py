"""Halves the batch until it fits, and accumulates the rest, as scripts for Accelerate do it."""

import torch
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FITS = 8


def main(observed=16):
    accelerator = Accelerator()
    observed = observed // accelerator.num_processes
    fits = FITS // accelerator.num_processes
    tried = []

    @find_executable_batch_size(starting_batch_size=observed)
    def inner(batch_size):
        tried.append(batch_size * accelerator.num_processes)
        accelerator.free_memory()
        set_seed(2)
        inputs = torch.randn(64, 3)
        data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
        accelerator.gradient_accumulation_steps = observed // batch_size
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=batch_size)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for _ in range(3):
            for features, targets in loader:
                if len(features) > fits:
                    raise RuntimeError("CUDA out of memory.")  # as a GPU that is full says it
                with accelerator.accumulate(model):
                    accelerator.backward(nn.functional.mse_loss(model(features), targets))
                    optimizer.step()
                    optimizer.zero_grad()
        return accelerator.unwrap_model(model).weight.detach().flatten().tolist()

    weights = inner()
    return {"tried": tried, "weights": weights}


if __name__ == "__main__":
    print(main())
