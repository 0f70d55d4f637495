"""Runs a training script of diffusers as it is, from a fixed seed; the first argument is the script.

Where torchvision does not load beside the torch that is installed, a few transforms stand in for it.
"""

import random
import runpy
import sys
import types

import datasets  # noqa: F401 - these look for torchvision when they are imported, and would ask it for more
import diffusers.training_utils  # noqa: F401
import few_transforms
import numpy
import torch
from transformers.utils import is_torchvision_available

if __name__ == "__main__":
    if not is_torchvision_available():
        sys.modules["torchvision"] = types.ModuleType("torchvision")
        sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"] = few_transforms
    # train_unconditional takes no seed
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
