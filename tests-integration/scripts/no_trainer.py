"""Fine-tunes a Transformers model as the scripts that go without a Trainer do: which of two modules is a text from?"""

import argparse
import inspect
from encodings import cp437
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator
from accel.utils import set_seed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

LENGTH = 48


def texts() -> list[dict[str, Any]]:
    """Pieces of the standard library's own sources, as bytes."""
    found = []
    for label, module in enumerate((argparse, cp437)):
        source = inspect.getsource(module).encode()
        found += [
            {"input_ids": list(source[at : at + LENGTH]), "labels": label}
            for at in range(0, min(len(source), 15000) - LENGTH, LENGTH)
        ]
    return found


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--num_train_epochs", type=int, default=4)
    parser.add_argument("--per_device_train_batch_size", type=int, default=16)
    args = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(0)
    examples = texts()
    train_loader: Any = DataLoader(
        examples,  # type: ignore[arg-type]
        batch_size=args.per_device_train_batch_size,
        shuffle=True,
        collate_fn=collate,
    )
    eval_loader: Any = DataLoader(examples[::7], batch_size=16, collate_fn=collate)  # type: ignore[arg-type]
    config = BertConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model: Any = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    steps = args.num_train_epochs * len(train_loader)
    scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=steps)
    progress_bar = tqdm(range(steps), disable=not accelerator.is_local_main_process)
    for _ in range(args.num_train_epochs):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                outputs = model(**batch)
                accelerator.backward(outputs.loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            progress_bar.update(1)
    progress_bar.close()

    model.eval()
    correct = seen = 0
    for batch in eval_loader:
        with torch.no_grad():
            outputs = model(**batch)
        guesses, labels = accelerator.gather_for_metrics((outputs.logits.argmax(dim=-1), batch["labels"]))
        correct += int((guesses == labels).sum())
        seen += len(labels)
    accelerator.print(f"accuracy {correct / seen:.3f} of {seen} of {len(examples[::7])}, {outputs.logits.dtype}")
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained(
        args.output_dir,
        is_main_process=bool(accelerator.is_main_process),
        state_dict=accelerator.get_state_dict(model),
    )


if __name__ == "__main__":
    main()
