"""Steps by itself on each process, and averages now and then, as scripts for Accelerate do it."""

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(epochs=4):
    accelerator = Accelerator()
    set_seed(5)
    inputs = torch.randn(96, 3)
    data = TensorDataset(inputs, inputs @ torch.tensor([[1.0], [-2.0], [0.5]]))
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=4, enabled=True) as local_sgd:
        for _ in range(epochs):
            for features, targets in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.mse_loss(model(features), targets)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    local_sgd.step()
    weight = accelerator.unwrap_model(model).weight.detach().flatten()
    every = accelerator.gather(weight.unsqueeze(0))
    return {"weights": every.tolist()}


if __name__ == "__main__":
    print(main())
