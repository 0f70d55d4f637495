"""Trains adapters (LoRA) of a language model, saves them alone, and loads them again with peft.

accel launch --cpu --num_processes 2 docs/examples/lora.py
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator
from accel.utils import set_seed
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH = 64


def base_model() -> Any:
    """A small Llama with random weights that are always the same; `from_pretrained` gives a trained one."""
    set_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )
    return LlamaForCausalLM(config)


def pieces(path: Path, count: int) -> Tensor:
    """The first pieces of the text, a byte for each token."""
    text = path.read_bytes()[: count * LENGTH]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, LENGTH)


def mean_loss(model: Any, rows: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        loss: float = model(input_ids=rows, labels=rows).loss.item()
    model.train()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="default: a source of Python")
    parser.add_argument("--rank", type=int, default=8, help="the rank of the adapters")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/lora"))
    arguments = parser.parse_args()

    accelerator = Accelerator(split_batches=True)
    adapters = LoraConfig(r=arguments.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    # This base has learnt nothing, so its last layer is trained as a whole. A trained base needs no such layer.
    adapters.modules_to_save = ["lm_head"]
    model: Any = get_peft_model(base_model(), adapters)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    rows = pieces(arguments.text, count=512)
    loader = DataLoader(TensorDataset(rows), batch_size=32, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    some = rows[:64].to(accelerator.device)
    before = mean_loss(accelerator.unwrap_model(model), some)
    for epoch in range(arguments.epochs):
        for (tokens,) in loader:
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {accelerator.reduce(loss.detach(), 'mean').item():.3f}")

    weights = accelerator.get_state_dict(model)  # every process has to call
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(arguments.output, state_dict=weights)
    accelerator.wait_for_everyone()  # the adapters are written

    again = PeftModel.from_pretrained(base_model(), arguments.output).to(accelerator.device)
    after, loaded = mean_loss(accelerator.unwrap_model(model), some), mean_loss(again, some)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    accelerator.print(f"trained {sum(parameter.numel() for parameter in trained)} of {parameters} parameters")
    accelerator.print(f"result: loss {after:.3f} after {before:.3f}, and {loaded:.3f} with the adapters from the disk")
    accelerator.end_training()


if __name__ == "__main__":
    main()
