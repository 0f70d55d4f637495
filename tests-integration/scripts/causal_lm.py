"""Trains a language model on the sources of Python, whole or by adapters; nothing says on how many devices."""

import argparse
import inspect
import math
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator
from accel.utils import set_seed
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH, ROWS, BATCH = 32, 192, 16


def texts() -> list[dict[str, Any]]:
    source = inspect.getsource(argparse).encode("ascii", "replace")
    return [{"input_ids": list(source[at : at + LENGTH])} for at in range(0, ROWS * LENGTH, LENGTH)]


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    tokens = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": tokens, "labels": tokens}


def base_model() -> GPT2LMHeadModel:
    set_seed(0)
    drops: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, **drops, **ends))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--lora", action="store_true")
    args = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=2)
    model: Any = base_model()
    if args.lora:
        model = get_peft_model(model, LoraConfig(r=16, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in trained)
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    batch_size = BATCH // accelerator.num_processes
    examples: Any = texts()
    train_loader: Any = DataLoader(examples, batch_size=batch_size, shuffle=True, collate_fn=collate)
    eval_loader: Any = DataLoader(examples[::5], batch_size=batch_size, collate_fn=collate)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)

    for _ in range(2):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    model.eval()
    losses = []
    for batch in eval_loader:
        with torch.no_grad():
            logits = model(**batch).logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten(), reduction="none")
        losses.append(accelerator.gather_for_metrics(loss.view(-1, LENGTH - 1).mean(dim=1)))
    perplexity = math.exp(torch.cat(losses).mean().item())
    prompt = torch.tensor([list(b"def add_")], device=accelerator.device)
    written = accelerator.unwrap_model(model).generate(input_ids=prompt, max_new_tokens=8, do_sample=False)
    accelerator.print(f"perplexity {perplexity:.4f} written {written[0].tolist()}")

    state = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(args.output_dir, state_dict=state)
        size = sum(path.stat().st_size for path in args.output_dir.glob("*.safetensors"))
        found: Any = base_model()
        found = (
            PeftModel.from_pretrained(found, args.output_dir) if args.lora else found.from_pretrained(args.output_dir)
        )
        with torch.no_grad():
            again = found.eval()(**collate(examples[:8])).logits
            print(f"bytes {size} trained {4 * count} logits {again.abs().mean().item():.5f}")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
