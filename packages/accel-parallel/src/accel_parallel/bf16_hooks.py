"""torch's bf16 hooks by other names: it refuses them by name without CUDA, though gloo adds bfloat16 up as well."""

# Not with postponed annotations: torch reads those of a hook.

from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def bf16_gradients(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sends gradients in bfloat16."""
    return default_hooks.bf16_compress_hook(state, bucket)


def bf16_gradients_of(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, which sends in bfloat16."""
    wrapped = default_hooks.bf16_compress_wrapper(hook)
    return lambda state, bucket: wrapped(state, bucket)
