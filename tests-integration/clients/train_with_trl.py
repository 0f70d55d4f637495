"""Trains a random model by trl, on prompts and on preferences, and prints the losses of each as JSON."""

import json
import os
import sys
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(30))]
STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
COMMON = {
    "per_device_train_batch_size": 4,
    "max_steps": 4,
    "logging_steps": 1,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "gradient_checkpointing": False,
    "seed": 3,
}


def tokenizer():
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def model():
    set_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=len(WORDS), n_positions=64, **STILL))


def text(start):
    return " ".join(WORDS[3 + (start + step) % 30] for step in range(8))


def prompts(folder):
    data = Dataset.from_list([{"text": text(number)} for number in range(32)])
    arguments = SFTConfig(folder, max_length=16, **COMMON)
    trainer = SFTTrainer(model(), args=arguments, train_dataset=data, processing_class=tokenizer())
    trainer.train()
    return trainer


def preferences(folder):
    rows = [{"prompt": text(n), "chosen": text(n + 8), "rejected": text(n + 3)} for n in range(32)]
    arguments = DPOConfig(folder, max_length=32, **COMMON)
    trainer = DPOTrainer(
        model(), ref_model=model(), args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer()
    )
    trainer.train()
    return trainer


def main(folder):
    import accelerate

    found = {"by": accelerate.Accelerator.__module__}
    for name, train in (("prompts", prompts), ("preferences", preferences)):
        history = train(f"{folder}/{name}").state.log_history
        found[name] = [[entry["loss"], entry["grad_norm"]] for entry in history if "loss" in entry]
    if os.environ.get("RANK", "0") == "0":
        Path(folder, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
