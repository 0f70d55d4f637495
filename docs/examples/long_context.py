"""Fine-tunes a language model on long sequences, each of which is divided over all processes.

accel launch --cpu --num_processes 2 docs/examples/long_context.py
accel launch --cpu --num_processes 4 docs/examples/long_context.py --length 4096 --ring
"""

import argparse
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, ActivationCheckpointingKwargs, ParallelismConfig, ProjectConfiguration
from accel.utils import set_seed
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def documents(folder: Path) -> Iterator[Tensor]:
    """The sources below a folder, a byte for each token."""
    for path in sorted(folder.glob("*.py")):
        yield torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()


def packed(folder: Path, length: int) -> list[dict[str, Tensor]]:
    """Rows of equal length, full of documents: positions begin at 0 with each, so that none sees another."""
    tokens, positions, labels = [], [], []
    for document in documents(folder):
        tokens.append(document)
        positions.append(torch.arange(len(document)) % length)
        labels.append(torch.cat([torch.tensor([-100]), document[1:]]))  # nothing foretells how a document begins
    columns = {"input_ids": tokens, "position_ids": positions, "labels": labels}
    rows = {name: torch.split(torch.cat(parts), length) for name, parts in columns.items()}
    return [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True) if len(row[0]) == length]


def language_model(path: Path | None, length: int) -> Any:
    """A model from a folder, or a small Llama with random weights."""
    if path is not None:
        return AutoModelForCausalLM.from_pretrained(path)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=length,
    )
    return LlamaForCausalLM(config)


def held_out_perplexity(accelerator: Accelerator, model: Any, loader: Any) -> float:
    model.eval()
    losses = []
    for batch in loader:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(**batch, use_cache=False).loss.reshape(1)))
    model.train()
    return math.exp(torch.cat(losses).double().mean().item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, default=Path(json.__file__).parent, help="folder of Python sources")
    parser.add_argument("--model", type=Path, help="folder of a model whose tokens are bytes; default: random weights")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--ring", action="store_true", help="divide by a ring, for models with few heads")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/long_context"))
    arguments = parser.parse_args()

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    divided = ParallelismConfig(cp_size=processes) if arguments.ring else ParallelismConfig(sp_size=processes)
    accelerator = Accelerator(
        parallelism_config=divided,
        kwargs_handlers=[ActivationCheckpointingKwargs()],
        project_config=ProjectConfiguration(arguments.output, automatic_checkpoint_naming=True, total_limit=2),
    )
    set_seed(0)
    rows: Any = packed(arguments.texts, arguments.length)
    train, held_out = rows[: len(rows) * 9 // 10], rows[len(rows) * 9 // 10 :]
    model = language_model(arguments.model, arguments.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train_loader: Any = DataLoader(train, batch_size=4, shuffle=True)
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model, optimizer, train_loader, DataLoader(held_out, batch_size=1)
    )
    if (checkpoint := accelerator.resume()) is not None:
        accelerator.print(f"goes on from {checkpoint.name}")

    for epoch in range(train_loader.iteration, arguments.epochs):
        for batch in train_loader:
            accelerator.backward(model(**batch, use_cache=False).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        reached = held_out_perplexity(accelerator, model, test_loader)
        accelerator.print(f"epoch {epoch}: perplexity {reached:.3f} of {len(held_out)} sequences")
        accelerator.save_state()
    reached = held_out_perplexity(accelerator, model, test_loader)
    accelerator.print(f"result: perplexity {reached:.3f} of {len(held_out)} sequences")
    accelerator.end_training()


if __name__ == "__main__":
    main()
