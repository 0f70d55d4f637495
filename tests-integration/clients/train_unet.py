"""Trains a small UNet of diffusers on noise, as its scripts do it, and prints the losses as JSON."""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader


def main(folder):
    accelerator = Accelerator(
        gradient_accumulation_steps=2, project_config=ProjectConfiguration(project_dir=folder, logging_dir=folder)
    )
    set_seed(1)
    images = torch.randn(32, 3, 8, 8)
    model = UNet2DModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    average = EMAModel(model.parameters(), model_cls=UNet2DModel, model_config=model.config)
    noise_scheduler = DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # without a generator Accelerate draws another order for two processes than for one; accel draws the same
    loader = DataLoader(images, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(2))
    rate = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=16)
    model, optimizer, loader, rate = accelerator.prepare(model, optimizer, loader, rate)
    draw = torch.Generator().manual_seed(accelerator.process_index)
    losses = []
    for _ in range(2):
        for clean in loader:
            noise = torch.randn(clean.shape, generator=draw)
            steps = torch.randint(0, 50, (len(clean),), generator=draw)
            with accelerator.accumulate(model):
                predicted = model(noise_scheduler.add_noise(clean, noise, steps), steps).sample
                loss = torch.nn.functional.mse_loss(predicted, noise)
                losses.append(accelerator.gather(loss.repeat(4)).mean().item())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                rate.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                average.step(model.parameters())
    accelerator.save_state(f"{folder}/checkpoint")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(f"{folder}/unet")
        found = {"by": Accelerator.__module__, "unet": [[loss] for loss in losses]}
        Path(folder, "found.json").write_text(json.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
