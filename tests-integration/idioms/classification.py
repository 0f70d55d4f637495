"""Trains a classifier with a warm-up, clipped gradients and accumulation, as scripts for Accelerate do it."""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def points(seed, count):
    """Points around four centres, which are the classes."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=draw)
    centres = torch.tensor([[2.0, 2.0], [-2.0, 2.0], [-2.0, -2.0], [2.0, -2.0]])
    return TensorDataset(centres[labels] + torch.randn(count, 2, generator=draw), labels)


def main(epochs=3, batch_size=16):
    accelerator = Accelerator(
        gradient_accumulation_steps=2, dataloader_config=DataLoaderConfiguration(split_batches=True)
    )
    set_seed(7)
    train_dataloader = DataLoader(points(1, 256), batch_size=batch_size, shuffle=True)
    eval_dataloader = DataLoader(points(2, 101), batch_size=batch_size)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
    model, optimizer, train_dataloader, eval_dataloader, warm_up = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, warm_up
    )
    for _ in range(epochs):
        model.train()
        for inputs, targets in train_dataloader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                warm_up.step()
                optimizer.zero_grad()
    model.eval()
    hits = []
    for inputs, targets in eval_dataloader:
        with torch.no_grad():
            outputs = model(inputs)
        guesses, references = accelerator.gather_for_metrics((outputs.argmax(dim=1), targets))
        hits.append(guesses == references)
    hits = torch.cat(hits)
    state = accelerator.get_state_dict(model)
    weights = sum(value.double().abs().sum().item() for value in state.values()) if state else 0.0
    return {"accuracy": hits.float().mean().item(), "seen": len(hits), "weights": weights}


if __name__ == "__main__":
    print(main())
