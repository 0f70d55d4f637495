"""A training of a language model, as a user writes it: rehearsed on the host, and run on the device."""

import argparse

import torch
from accel import Accelerator
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gpu_checks.training import Language

STEPS = 3


def main() -> None:
    """Trains a few steps, and prints the bytes that the allocator has given out at the peak."""
    parser = argparse.ArgumentParser()
    for name in ("width", "layers", "rows", "tokens", "words"):
        parser.add_argument(f"--{name}", type=int)
    asked = parser.parse_args()
    accelerator = Accelerator()
    torch.manual_seed(0)
    bare = Language(asked.words, asked.width, asked.layers)
    texts = torch.randint(asked.words, (STEPS * asked.rows, asked.tokens))
    batches: DataLoader[tuple[Tensor, ...]] = DataLoader(TensorDataset(texts, texts), batch_size=asked.rows)
    model, optimizer, loader = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters()), batches)
    for text, right in loader:
        accelerator.backward(cross_entropy(model(text), right.flatten()))
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.device.type == "cuda":
        print(torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
