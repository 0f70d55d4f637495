"""Writes digits as images with captions, and models of random weights, for the training scripts of diffusers."""

import json
import string
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDPMScheduler, StableDiffusionPipeline, UNet2DConditionModel, UNet2DModel
from PIL import Image
from sklearn.datasets import load_digits
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

#: 6 batches of 4
IMAGES = 24
TOKENS = 8
BLOCKS = {"layers_per_block": 1, "block_out_channels": (8, 16), "norm_num_groups": 4}


def write_images(folder):
    folder.mkdir(parents=True)
    digits = load_digits()
    with open(folder / "metadata.jsonl", "w") as lines:
        for row in range(IMAGES):
            pixels = (digits.images[row] * 15.9).astype("uint8")
            Image.fromarray(pixels).convert("RGB").save(folder / f"{row:02}.png")
            lines.write(json.dumps({"file_name": f"{row:02}.png", "text": f"digit {digits.target[row]}"}) + "\n")


def tokenizer(folder):
    """A tokenizer whose words are single letters and digits."""
    letters = [*string.ascii_lowercase, *string.digits]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=TOKENS)


def write_models(folder):
    torch.manual_seed(0)
    words = tokenizer(folder)
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=TOKENS,
        )
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    unet = UNet2DConditionModel(
        sample_size=4, **BLOCKS, cross_attention_dim=16, attention_head_dim=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    StableDiffusionPipeline(
        vae=vae, text_encoder=text_encoder, tokenizer=words, unet=unet, scheduler=DDPMScheduler(num_train_timesteps=50),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    ).save_pretrained(folder / "model")  # fmt: skip
    alone = UNet2DModel(
        sample_size=8, **BLOCKS,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    alone.save_config(folder / "alone")


if __name__ == "__main__":
    write_images(Path(sys.argv[1], "images"))
    write_models(Path(sys.argv[1]))
