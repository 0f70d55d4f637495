"""Trains and evaluates a classifier of random samples: a right program, which tests make wrong."""

import torch
from accel import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3


def main() -> None:
    """Train and evaluate."""
    accelerator = Accelerator()
    torch.manual_seed(0)
    train = TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
    test = TensorDataset(torch.randn(90, 16), torch.randint(0, 4, (90,)))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader, test_loader = DataLoader(train, batch_size=8, shuffle=True), DataLoader(test, batch_size=8)
    steps = EPOCHS * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    loader, test_loader = accelerator.prepare(loader, test_loader)
    best = 0.0
    for epoch in range(EPOCHS):
        model.train()
        total = 0.0
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total += loss.item()
        model.eval()
        right = []
        for inputs, labels in test_loader:
            with torch.no_grad():
                guesses = model(inputs).argmax(dim=1)
            guesses, labels = accelerator.gather_for_metrics((guesses, labels))
            right.append(guesses == labels)
        accuracy = torch.cat(right).float().mean().item()
        best = max(best, accuracy)
        accelerator.print(f"epoch {epoch}: {total / len(loader):.3f} {accuracy:.2%} {best:.2%}")
    accelerator.save_model(model, "out")


if __name__ == "__main__":
    main()
