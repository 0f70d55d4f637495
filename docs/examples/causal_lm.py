"""Trains a language model on text, in any precision, and goes on where it was if it is started again.

accel launch --cpu --num_processes 2 docs/examples/causal_lm.py --mixed_precision bf16
accel launch --cpu --num_processes 1 docs/examples/causal_lm.py --epochs 4    # goes on with the fourth epoch
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, get_constant_schedule_with_warmup

LENGTH = 64


def pieces(path: Path) -> tuple[Tensor, Tensor]:
    """The text in pieces of equal length, a byte for each token: each tenth piece is held out."""
    text = path.read_bytes()
    whole = len(text) // LENGTH * LENGTH
    rows = torch.frombuffer(bytearray(text[:whole]), dtype=torch.uint8).long().view(-1, LENGTH)
    held_out = torch.arange(len(rows)) % 10 == 9
    return rows[~held_out], rows[held_out]


def language_model() -> Any:
    """A small Llama with random weights; `from_pretrained` gives a trained one."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )
    return LlamaForCausalLM(config)


def perplexity(accelerator: Accelerator, model: Any, loader: Any) -> float:
    model.eval()
    losses = []
    for (tokens,) in loader:
        with torch.no_grad():
            logits = model(input_ids=tokens).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        # A loss for each piece, not one for each process: otherwise pieces that are served twice would count twice.
        losses.append(accelerator.gather_for_metrics(loss.view(len(tokens), -1).mean(dim=1)))
    model.train()
    return math.exp(torch.cat(losses).double().mean().item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="default: a source of Python")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32, help="pieces of a batch, over all processes")
    parser.add_argument("--mixed_precision", choices=["no", "bf16", "fp16"], help="default: as the launcher says")
    parser.add_argument("--output", type=Path, default=Path("runs/causal_lm"))
    arguments = parser.parse_args()

    project = ProjectConfiguration(arguments.output, automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(split_batches=True, mixed_precision=arguments.mixed_precision, project_config=project)
    set_seed(0)
    train, held_out = pieces(arguments.text)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train_loader: Any = DataLoader(TensorDataset(train), arguments.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(TensorDataset(held_out), arguments.batch_size)
    model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
    scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=10)
    accelerator.register_for_checkpointing(schedule=scheduler)
    if (checkpoint := accelerator.resume()) is not None:
        accelerator.print(f"goes on from {checkpoint.name}")

    for epoch in range(train_loader.iteration, arguments.epochs):
        for (tokens,) in train_loader:
            accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        reached = perplexity(accelerator, model, test_loader)
        accelerator.print(f"epoch {epoch}: perplexity {reached:.3f} of {len(held_out)} pieces")
        accelerator.save_state()
    accelerator.print(f"result: perplexity {perplexity(accelerator, model, test_loader):.3f}")

    weights = accelerator.get_state_dict(model)  # every process has to call
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(arguments.output / "model", state_dict=weights)
    accelerator.end_training()


if __name__ == "__main__":
    main()
