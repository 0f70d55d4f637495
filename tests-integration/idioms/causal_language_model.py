"""Trains a small language model and gives its perplexity, as scripts for Accelerate do it."""

import math

import accelerate
import torch
from torch import nn
from torch.utils.data import DataLoader

TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps on while the fox runs away " * 20
LETTERS = sorted(set(TEXT))
LENGTH = 24


class LanguageModel(nn.Module):
    """Predicts each next letter."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), 24)
        self.memory = nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, len(LETTERS))

    def forward(self, input_ids):
        logits = self.head(self.memory(self.letters(input_ids))[0])
        targets = input_ids[:, 1:].reshape(-1)
        return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, len(LETTERS)), targets)


def blocks():
    ids = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    return [{"input_ids": part} for part in ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)]


def main(epochs=2, batch_size=8):
    accelerator = accelerate.Accelerator()
    accelerate.utils.set_seed(3)
    data = blocks()
    share = batch_size // accelerator.num_processes
    train_dataloader = DataLoader(data[11:], shuffle=True, batch_size=share)
    eval_dataloader = DataLoader(data[:8], batch_size=share)
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    for _ in range(epochs):
        model.train()
        for batch in train_dataloader:
            loss = model(**batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    for batch in eval_dataloader:
        with torch.no_grad():
            loss = model(**batch)
        losses.append(accelerator.gather_for_metrics(loss.repeat(share)))
    perplexity = math.exp(torch.mean(torch.cat(losses)).item())
    return {"perplexity": perplexity, "seen": sum(map(len, losses))}


if __name__ == "__main__":
    print(main())
