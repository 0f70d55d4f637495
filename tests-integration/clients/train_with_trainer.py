"""Trains random models by transformers' Trainer in several ways, and prints the losses of each as JSON."""

import json
import os
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

TOKENS = torch.randint(0, 64, (64, 16), generator=torch.Generator().manual_seed(1))
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32, **STILL))


def bert():
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(vocab_size=64, **SMALL, **still))


def lora():
    return get_peft_model(gpt2(), LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0, fan_in_fan_out=True))


class Full(Trainer):
    """A trainer on a device that has no room for a batch of more than four."""

    def training_step(self, model, inputs, *rest, **more):
        if len(inputs["input_ids"]) > 4:
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(model, inputs, *rest, **more)


def run(folder, make, resume=False, kind=Trainer, **options):
    set_seed(0)
    model = make()
    labels = (lambda row: row[0] % 2) if make is bert else (lambda row: row)
    data = [{"input_ids": row, "labels": labels(row)} for row in TOKENS]
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        max_steps=8,
        save_steps=4,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=4,
        learning_rate=1e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
        **options,
    )
    trainer = kind(model, arguments, train_dataset=data, eval_dataset=data[:20])
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-4" if resume else None)
    names = ("loss", "eval_loss", "grad_norm")
    return [[entry[name] for name in names if name in entry] for entry in trainer.state.log_history]


def main(folder):
    variants = {
        "gpt2": lambda: run(f"{folder}/gpt2", gpt2),
        "gpt2, resumed": lambda: run(f"{folder}/gpt2", gpt2, resume=True),
        "gpt2, accumulated": lambda: run(f"{folder}/accumulated", gpt2, gradient_accumulation_steps=2),
        "gpt2, bf16": lambda: run(f"{folder}/bf16", gpt2, bf16=True),
        "gpt2, batch found": lambda: run(f"{folder}/found", gpt2, kind=Full, auto_find_batch_size=True),
        "bert": lambda: run(f"{folder}/bert", bert),
        "lora": lambda: run(f"{folder}/lora", lora),
    }
    chosen = sys.argv[2:] or variants
    found = {name: variants[name]() for name in chosen}
    import accelerate

    found["by"] = accelerate.Accelerator.__module__
    if os.environ.get("RANK", "0") == "0":
        Path(folder, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
