"""Trains as the scripts of diffusers do, which save under `if accelerator.is_main_process` and resume from the latest.

The wheel of diffusers has no scripts: these have the form of train_unconditional, train_text_to_image and
train_dreambooth_lora, with random models and data. The losses are printed as JSON.
"""

import argparse
import json
import logging
import os
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedType
from accelerate.logging import get_logger
from accelerate.utils import ProjectConfiguration, set_seed
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel, UNet2DModel
from diffusers.loaders import StableDiffusionLoraLoaderMixin
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel, cast_training_params
from diffusers.utils import convert_state_dict_to_diffusers, convert_unet_state_dict_to_peft
from diffusers.utils.torch_utils import is_compiled_module
from peft import LoraConfig, set_peft_model_state_dict
from peft.utils import get_peft_model_state_dict
from torch.utils.data import DataLoader, TensorDataset
from transformers import CLIPTextConfig, CLIPTextModel

logger = get_logger(__name__)
BLOCKS = {"layers_per_block": 1, "block_out_channels": (8, 16), "norm_num_groups": 4}


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--kind", choices=["unconditional", "text_to_image", "lora"])
    parser.add_argument("--checkpointing_steps", type=int, default=2)
    parser.add_argument("--checkpoints_total_limit", type=int)
    parser.add_argument("--resume_from_checkpoint")
    parser.add_argument("--max_train_steps", type=int, default=4)
    return parser.parse_args()


def made(kind):
    """The model that is trained, and the frozen models of text and of images."""
    if kind == "unconditional":
        blocks = {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        }
        return UNet2DModel(sample_size=8, **BLOCKS, **blocks), None, None
    unet = UNet2DConditionModel(
        sample_size=4,
        **BLOCKS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=2,
    )
    words = CLIPTextConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8,
    )  # fmt: skip
    images = AutoencoderKL(block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)  # fmt: skip
    return unet, CLIPTextModel(words).requires_grad_(False), images.requires_grad_(False)


def main(args):
    logging.basicConfig(level=logging.INFO)
    accelerator = Accelerator(project_config=ProjectConfiguration(args.folder, f"{args.folder}/logs"))
    set_seed(1)
    unet, text_encoder, vae = made(args.kind)
    own = type(unet)
    if args.kind == "lora":
        unet.requires_grad_(False)
        unet.add_adapter(LoraConfig(r=2, init_lora_weights="gaussian", target_modules=["to_k", "to_q", "to_v"]))
        cast_training_params(unet)
    average = None
    if args.kind != "lora":
        average = EMAModel(unet.parameters(), model_cls=own, model_config=unet.config)

    def unwrap(model):
        model = accelerator.unwrap_model(model)
        return model._orig_mod if is_compiled_module(model) else model

    def save_model_hook(models, weights, output_dir):
        if not accelerator.is_main_process:
            return
        if average is not None:
            average.save_pretrained(os.path.join(output_dir, "unet_ema"))
        for model in models:
            if args.kind == "lora":
                layers = convert_state_dict_to_diffusers(get_peft_model_state_dict(unwrap(model)))
                StableDiffusionLoraLoaderMixin.save_lora_weights(output_dir, unet_lora_layers=layers)
            else:
                unwrap(model).save_pretrained(os.path.join(output_dir, "unet"))
            weights.pop()  # or the model is saved once more

    def load_model_hook(models, input_dir):
        if average is not None:
            average.load_state_dict(EMAModel.from_pretrained(f"{input_dir}/unet_ema", own).state_dict())
        while models:
            model = models.pop()
            if args.kind == "lora":
                layers, _ = StableDiffusionLoraLoaderMixin.lora_state_dict(input_dir)
                layers = {name.removeprefix("unet."): value for name, value in layers.items()}
                layers = convert_unet_state_dict_to_peft(layers)
                set_peft_model_state_dict(unwrap(model), layers, adapter_name="default")
            else:
                unwrap(model).load_state_dict(own.from_pretrained(input_dir, subfolder="unet").state_dict())

    accelerator.register_save_state_pre_hook(save_model_hook)
    accelerator.register_load_state_pre_hook(load_model_hook)
    noise_scheduler = DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.AdamW([one for one in unet.parameters() if one.requires_grad], lr=1e-3)
    data = TensorDataset(torch.randn(24, 3, 8, 8), torch.randint(0, 64, (24, 8)))
    loader = DataLoader(data, shuffle=True, batch_size=4)
    rate = get_scheduler("cosine", optimizer, num_warmup_steps=1, num_training_steps=8)
    unet, optimizer, loader, rate = accelerator.prepare(unet, optimizer, loader, rate)
    if accelerator.is_main_process:
        accelerator.init_trackers(args.kind, config=vars(args))
    global_step = first_epoch = skipped = 0
    if args.resume_from_checkpoint:
        names = [name for name in os.listdir(args.folder) if name.startswith("checkpoint")]
        path = sorted(names, key=lambda name: int(name.split("-")[1]))[-1]
        accelerator.print(f"Resuming from checkpoint {path}")
        accelerator.load_state(os.path.join(args.folder, path))
        global_step = int(path.split("-")[1])
        first_epoch, skipped = divmod(global_step, len(loader))
    first_step, losses = global_step, []
    for epoch in range(first_epoch, 100):
        unet.train()
        for step, (clean, words) in enumerate(loader):
            if epoch == first_epoch and step < skipped:
                continue
            with accelerator.accumulate(unet):
                more = {}
                if vae is not None:
                    clean = vae.encode(clean).latent_dist.sample() * vae.config.scaling_factor
                    more = {"encoder_hidden_states": text_encoder(words)[0]}
                noise = torch.randn_like(clean)
                steps = torch.randint(0, 50, (len(clean),), device=clean.device)
                predicted = unet(noise_scheduler.add_noise(clean, noise, steps), steps, **more).sample
                loss = torch.nn.functional.mse_loss(predicted.float(), noise.float())
                losses.append([loss.item(), accelerator.gather(loss.repeat(4)).mean().item()])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(unet.parameters(), 1.0)
                optimizer.step()
                rate.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                if average is not None:
                    average.step(unet.parameters())
                global_step += 1
                accelerator.log({"train_loss": losses[-1][1]}, step=global_step)
                if global_step % args.checkpointing_steps == 0:  # noqa: SIM102 - as the scripts have it
                    if accelerator.is_main_process or accelerator.distributed_type == DistributedType.DEEPSPEED:
                        if args.checkpoints_total_limit is not None:
                            names = [name for name in os.listdir(args.folder) if name.startswith("checkpoint")]
                            names = sorted(names, key=lambda name: int(name.split("-")[1]))
                            for name in names[: max(len(names) - args.checkpoints_total_limit + 1, 0)]:
                                shutil.rmtree(os.path.join(args.folder, name))
                        save_path = os.path.join(args.folder, f"checkpoint-{global_step}")
                        accelerator.save_state(save_path)
                        logger.info(f"Saved state to {save_path}")
            if global_step >= args.max_train_steps:
                break
        if global_step >= args.max_train_steps:
            break
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        found = {"by": Accelerator.__module__, "losses": losses, "first step": [[first_step]]}
        Path(args.folder, "found.json").write_text(json.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    main(parsed())
