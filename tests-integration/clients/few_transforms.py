"""The transforms of images that the training scripts of diffusers ask of torchvision, where it cannot be loaded."""

import enum

import numpy
import torch
from PIL import Image


class InterpolationMode(enum.Enum):
    BILINEAR = Image.Resampling.BILINEAR


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class Resize:
    def __init__(self, size, interpolation):
        self.size, self.interpolation = size, interpolation

    def __call__(self, image):
        """Make the shorter side so long."""
        ratio = self.size / min(image.size)
        return image.resize([round(side * ratio) for side in image.size], self.interpolation.value)


class CenterCrop:
    def __init__(self, size):
        self.size = size

    def crop(self, image, at):
        left, top = (round((side - self.size) * at()) for side in image.size)
        return image.crop((left, top, left + self.size, top + self.size))

    def __call__(self, image):
        return self.crop(image, lambda: 0.5)


class RandomCrop(CenterCrop):
    def __call__(self, image):
        return self.crop(image, lambda: torch.rand(1).item())


class RandomHorizontalFlip:
    def __call__(self, image):
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1).item() < 0.5 else image


class Lambda:
    def __init__(self, function):
        self.function = function

    def __call__(self, image):
        return self.function(image)


class ToTensor:
    def __call__(self, image):
        return torch.from_numpy(numpy.array(image)).permute(2, 0, 1) / 255


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean[0], std[0]

    def __call__(self, image):
        return (image - self.mean) / self.std
