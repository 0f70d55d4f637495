"""Trains by the trainer of denoising-diffusion-pytorch, with averages of ema-pytorch, and prints weights as JSON.

Its trainer of images is left out: it needs a torchvision that was built for the torch that is installed.
"""

import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import torch
from accelerate import Accelerator

for name in ("torchvision", "torchvision.transforms", "pytorch_fid", "pytorch_fid.fid_score", "pytorch_fid.inception"):
    sys.modules.setdefault(name, MagicMock())
from denoising_diffusion_pytorch import (  # noqa: E402 - after the stand-ins
    GaussianDiffusion1D,
    Trainer1D,
    Unet1D,
    denoising_diffusion_pytorch_1d,
)


def norms(model):
    """The sum of the absolute weights of each parameter: equal only after equal steps."""
    return [[parameter.detach().abs().sum().item()] for parameter in model.parameters()]


def main(folder):
    denoising_diffusion_pytorch_1d.cpu_count = lambda: 0  # it makes a loader worker for each core
    torch.manual_seed(1)
    diffusion = GaussianDiffusion1D(Unet1D(dim=8, dim_mults=(1, 2), channels=2), seq_length=8, timesteps=20)
    data = denoising_diffusion_pytorch_1d.Dataset1D(torch.rand(16, 2, 8))
    trainer = Trainer1D(
        diffusion, data, train_batch_size=4, train_num_steps=6, save_and_sample_every=3, num_samples=4, train_lr=1e-3,
        gradient_accumulate_every=2, ema_update_every=2, results_folder=folder,
    )  # fmt: skip
    trainer.train()
    trainer.accelerator.wait_for_everyone()
    trainer.load(1)
    trainer.train()
    if trainer.accelerator.is_main_process:
        found = {
            "by": Accelerator.__module__,
            "weights": norms(trainer.accelerator.unwrap_model(trainer.model)),
            "averages": norms(trainer.ema.ema_model),
        }
        Path(folder, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
