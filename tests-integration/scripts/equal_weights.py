"""Trains the same model in several ways; each rank is seeded differently on purpose. Writes what came out."""

import sys
from pathlib import Path

import torch
from accel import Accelerator
from cases import CASES, EPOCHS, GLOBAL_BATCH, case_name, data, make_model, make_optimizer


def train(shuffle: bool, split: bool, optimizer_name: str) -> tuple[dict[str, torch.Tensor], list[list[int]]]:
    accelerator = Accelerator(split_batches=split)
    torch.manual_seed(1000 + accelerator.process_index)
    model = make_model()
    optimizer = make_optimizer(optimizer_name, model)
    size = GLOBAL_BATCH if split else GLOBAL_BATCH // accelerator.num_processes
    loader = torch.utils.data.DataLoader(data(), batch_size=size, shuffle=shuffle)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    served: list[list[int]] = []
    for _ in range(EPOCHS):
        served.append([])
        for inputs, targets, ids in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            served[-1] += accelerator.gather(ids).tolist()
    return accelerator.get_state_dict(model), served


def main(folder: Path) -> None:
    for case in CASES:
        weights, served = train(**case)
        if Accelerator().is_main_process:
            torch.save({"weights": weights, "served": served}, folder / f"{case_name(case)}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
