"""What the fork server imports once, so that no worker has to: this module is never imported by a test."""

# DDP's first use imports torch._dynamo, FSDP2's torch.distributed.fsdp: seconds in each fresh worker
import pytest  # noqa: F401
import torch
import torch._dynamo
import torch.distributed
import torch.distributed.fsdp
import torch.nn.parallel
import torch.utils.data  # noqa: F401

import accel_testing.worker  # noqa: F401
