"""What has to happen around the forward of a sharded model, beside the gathering of weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, final

import torch
import torch.distributed as dist
from accel_amp import PrecisionPolicy, autocast
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accel_parallel.rank_zero_weights import send_tensors


@final
class ShardedForward:
    """Buffers are those of the first rank in each forward; no weight stays gathered after a forward without gradients.

    No weight stays gathered over an optimizer step either, after a forward that had no backward: it would be out of
    date.
    """

    def __init__(
        self, model: nn.Module, groups: Sequence[dist.ProcessGroup], device: torch.device, policy: PrecisionPolicy
    ) -> None:
        self._model, self._groups, self._device, self._policy = model, groups, device, policy
        self._depth = 0
        self._sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
        # buffers that are not saved, such as frequencies and masks, are constants
        kept = model.state_dict(keep_vars=True)
        self._shared = [name for name, _ in model.named_buffers() if name in kept]
        if self._shared:
            model.register_forward_pre_hook(self._share_buffers)
        model.register_forward_hook(self._free_after_evaluation)
        this = weakref.ref(self)

        def free(*_: Any) -> None:
            if (alive := this()) is not None:
                alive._free()

        weakref.finalize(self, register_optimizer_step_pre_hook(free).remove)

    def register(self, names: Iterable[str]) -> None:
        """Lets methods of these names call the model's modules, as its forward does, in the precision of the policy.

        Raises: ValueError for a name that is no method.
        """
        for name in names:
            if not callable(getattr(self._model, name, None)):
                raise ValueError(f"forward_methods: {type(self._model).__name__} has no method {name!r}")
            register_fsdp_forward_method(self._model, name)
            setattr(self._model, name, self._around(getattr(self._model, name)))

    def _around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                with autocast(self._policy, self._device.type):
                    return method(*args, **kwargs)
            finally:
                self._depth -= 1
                self._free_after_evaluation()

        return call

    def _free_after_evaluation(self, *_: Any) -> None:
        if self._depth == 0 and not torch.is_grad_enabled():
            self._free()

    def _free(self) -> None:
        for module in self._sharded:
            module.reshard()

    def _share_buffers(self, *_: Any) -> None:
        alike: dict[torch.dtype, list[torch.Tensor]] = {}
        for name in self._shared:
            # by .data, so that the version does not change: an earlier forward may have saved the buffer
            buffer = self._model.get_buffer(name).data
            alike.setdefault(buffer.dtype, []).append(buffer)
        for buffers in alike.values():
            numbers = torch.cat([buffer.reshape(-1) for buffer in buffers])
            send_tensors([numbers], self._groups, self._device)
            for buffer, sent in zip(buffers, torch.split(numbers, [buffer.numel() for buffer in buffers]), strict=True):
                buffer.copy_(sent.view_as(buffer))
