"""Trains a small model of random weights: the program of the truth tests."""

import argparse
from importlib import import_module
from typing import Any

import torch
from accel import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH, CLASSES = 512, 32, 10


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Samples that are made when they are read."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        if self.kind == "images":
            images = torch.randn(3, 32, 32, generator=generator)
            return {"pixel_values": images, "labels": torch.tensor(index % CLASSES)}
        words = torch.randint(2, VOCABULARY, (LENGTH,), generator=generator)
        if self.kind == "classes":
            return {"input_ids": words, "labels": torch.tensor(index % CLASSES)}
        return {"input_ids": words, "labels": words}


def model_of(name: str) -> tuple[Any, str]:
    """Return a model of random weights, and the kind of its samples."""
    t: Any = import_module("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
    if name == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=3, n_head=4)), "text"
    if name == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes)), "text"
    if name == "bert":
        config = t.BertConfig(vocab_size=VOCABULARY, num_labels=CLASSES, **sizes)
        return t.BertForSequenceClassification(config), "classes"
    if name == "vit":
        config = t.ViTConfig(image_size=32, patch_size=8, num_labels=CLASSES, **sizes)
        return t.ViTForImageClassification(config), "images"
    if name == "resnet":
        config = t.ResNetConfig(embedding_size=32, hidden_sizes=[64, 128, 256], depths=[2, 2, 2], num_labels=CLASSES)
        return t.ResNetForImageClassification(config), "images"
    config = t.T5Config(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=256, num_layers=2, num_heads=4)
    config.decoder_start_token_id = 0
    return t.T5ForConditionalGeneration(config), "text"


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of a model."""
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4)
    if name == "adafactor":
        return torch.optim.Adafactor(model.parameters(), lr=1e-4)
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--recompute", action="store_true")
    arguments = parser.parse_args()
    accelerator = Accelerator()
    torch.manual_seed(0)
    model, kind = model_of(arguments.model)
    if arguments.recompute:
        model.gradient_checkpointing_enable()
    optimizer = optimizer_of(arguments.optimizer, model)
    loader = DataLoader(Samples(kind), batch_size=8, shuffle=True)
    steps = arguments.epochs * len(loader) // accelerator.gradient_accumulation_steps
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    made, total = 0, 0.0
    model.train()
    for epoch in range(arguments.epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total += loss.item()
            if accelerator.sync_gradients:
                made += 1
                if made == arguments.steps:
                    return
        accelerator.print(f"epoch {epoch}: {total / len(loader):.3f}")


if __name__ == "__main__":
    main()
