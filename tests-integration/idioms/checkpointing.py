"""Saves each so many steps or each epoch, and resumes in the middle of an epoch, as scripts for Accelerate do it."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(folder, checkpointing_steps, resume_from_checkpoint=None, stop_after=None, epochs=2, batch_size=8):
    accelerator = Accelerator(
        project_config=ProjectConfiguration(project_dir=folder),
        dataloader_config=DataLoaderConfiguration(split_batches=True),
    )
    set_seed(11)
    inputs = torch.randn(64, 4)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    train_dataloader = DataLoader(data, shuffle=True, batch_size=batch_size)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
    model, optimizer, train_dataloader, scheduler = accelerator.prepare(model, optimizer, train_dataloader, scheduler)
    overall_step = starting_epoch = 0
    resume_step = None
    if resume_from_checkpoint:
        accelerator.load_state(resume_from_checkpoint)
        kind, _, number = os.path.basename(resume_from_checkpoint).partition("_")
        if kind == "epoch":
            starting_epoch = int(number) + 1
            overall_step = starting_epoch * len(train_dataloader)
        else:
            overall_step = int(number)
            starting_epoch, resume_step = divmod(overall_step, len(train_dataloader))
    for epoch in range(starting_epoch, epochs):
        model.train()
        if hasattr(train_dataloader, "set_epoch"):
            train_dataloader.set_epoch(epoch)
        active = train_dataloader
        if resume_from_checkpoint and epoch == starting_epoch and resume_step:
            active = accelerator.skip_first_batches(train_dataloader, resume_step)
        for features, targets in active:
            loss = nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            overall_step += 1
            if isinstance(checkpointing_steps, int) and overall_step % checkpointing_steps == 0:
                accelerator.save_state(os.path.join(folder, f"step_{overall_step}"))
            if overall_step == stop_after:
                break
        if overall_step == stop_after:
            break
        if checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(folder, f"epoch_{epoch}"))
    accelerator.wait_for_everyone()
    weights = accelerator.unwrap_model(model).weight.detach().flatten().tolist()
    accelerator.free_memory()
    return {"weights": weights, "steps": overall_step, "rate": scheduler.get_last_lr()[0]}


def main(folder="runs"):
    whole = train(f"{folder}/whole", None)
    train(f"{folder}/steps", 3, stop_after=7)
    by_step = train(f"{folder}/steps", 3, resume_from_checkpoint=f"{folder}/steps/step_6")
    train(f"{folder}/epochs", "epoch", stop_after=10)
    by_epoch = train(f"{folder}/epochs", "epoch", resume_from_checkpoint=f"{folder}/epochs/epoch_0")
    return {"whole": whole, "by_step": by_step, "by_epoch": by_epoch}


if __name__ == "__main__":
    print(main())
