"""Train by transformers' Trainer as a program for Accelerate, and print its log as JSON: sizes, rows, folder.

With the size `arrives` Transformers divides the layers of the model while it loads it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate import ParallelismConfig, PartialState
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


def main() -> None:
    sizes, rows, folder = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    set_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, **small))  # type: ignore[arg-type]
    if (arrives := sizes.pop("arrives", 1)) > 1:
        from transformers.distributed.configuration_utils import DistributedConfig

        written = Path(folder) / "model"
        with PartialState().main_process_first():
            if not written.exists():
                model.save_pretrained(written)
        model = LlamaForCausalLM.from_pretrained(written, distributed_config=DistributedConfig(tp_size=arrives))
    random = torch.Generator().manual_seed(1)
    data = []
    for row in range(32):
        tokens = torch.randint(0, 64, (22,), generator=random)
        left_out = torch.rand(22, generator=random) < 0.1 * (row % 8)
        data.append({"input_ids": tokens, "labels": torch.where(left_out, -100, tokens)})
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=rows,
        per_device_eval_batch_size=rows,
        num_train_epochs=1,
        gradient_accumulation_steps=2,
        logging_steps=1,
        learning_rate=1e-2,
        max_grad_norm=0.5,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        parallelism_config=ParallelismConfig(**sizes) if sizes else None,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data[:6],
        compute_metrics=lambda found: {"shape": list(np.shape(found.predictions))},
    )
    trainer.train()
    shape = trainer.evaluate()["eval_shape"]
    if trainer.is_world_process_zero():
        kept = [
            [entry[name] for name in ("loss", "grad_norm", "learning_rate")]
            for entry in trainer.state.log_history
            if "loss" in entry
        ]
        print("log", json.dumps({"steps": kept, "shape": shape}))


if __name__ == "__main__":
    main()
