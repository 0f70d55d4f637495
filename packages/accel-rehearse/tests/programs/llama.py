"""Trains a Llama of 70 billion parameters, or of any number of layers."""

import argparse
from importlib import import_module
from typing import Any

import torch
from accel import Accelerator
from torch.utils.data import DataLoader, Dataset


class Words(Dataset[dict[str, torch.Tensor]]):
    """Samples of 4,096 words."""

    def __len__(self) -> int:
        return 65536

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, 128256, (4096,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def main() -> None:
    """Train for an epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--recompute", action="store_true")
    arguments = parser.parse_args()
    accelerator = Accelerator()
    transformers: Any = import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=arguments.layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config)
    if arguments.recompute:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Words(), batch_size=1, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
