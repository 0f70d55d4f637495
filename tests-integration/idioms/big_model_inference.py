"""Builds a model without memory, chooses devices for its parts and loads it there, as scripts for Accelerate do it."""

import os

import torch
from accelerate import Accelerator, infer_auto_device_map, init_empty_weights, load_checkpoint_in_model
from accelerate.utils import gather_object
from torch import nn


def network():
    return nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])


def main(folder="runs"):
    accelerator = Accelerator()
    if accelerator.is_main_process:
        torch.manual_seed(4)
        accelerator.save_model(network(), folder, max_shard_size="2KB")
    accelerator.wait_for_everyone()
    with init_empty_weights():
        model = network()
    empty = all(parameter.is_meta for parameter in model.parameters())
    device_map = infer_auto_device_map(model, max_memory={"cpu": "1MB"})
    load_checkpoint_in_model(model, folder, device_map=device_map)
    prompts = [float(number) for number in range(5)]
    answers = []
    with accelerator.split_between_processes(prompts) as share, torch.no_grad():
        for prompt in share:
            answers.append(model(torch.full((1, 16), prompt)).sum().item())
    files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    return {
        "empty": empty,
        "devices": sorted(map(str, set(device_map.values()))),
        "files": len(files),
        "answers": gather_object(answers),
    }


if __name__ == "__main__":
    print(main())
