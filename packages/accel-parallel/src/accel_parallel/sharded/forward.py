"""Exchange buffers and free weights around the forward of a sharded model, beside the gathering of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import getattr_static
from types import FunctionType
from typing import Any, cast, final

import torch
import torch.distributed as dist
from accel_amp import PrecisionPolicy, autocast
from accel_amp.step_hook import call_before_steps
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.nn.modules.module import register_module_forward_pre_hook

from accel_parallel.computed_tensors import computed_tensors
from accel_parallel.rank_zero_source import send_tensors
from accel_parallel.sharded.places import ShardedPlaces
from accel_parallel.sharded.second_graph import refuse_second_graph


@final
class ShardedForward:
    """The hooks around the forward of a sharded model.

    In each forward buffers are those of the first rank. No weight stays gathered after a forward without gradients, nor
    over an optimizer step after a forward that had no backward, since it would be out of date. Public methods that the
    model's class adds to those of torch may call modules of the model: the first call gathers weights. A method that
    calls none may be called on one rank alone.

    Args:
        model: The sharded model.
        groups: Groups of ranks that share buffers.
        device: Device of forwards.
        policy: Dtypes of forwards.

    Source:
        `FSDPState._pre_forward` and `_post_forward` of torch 2.9 to 2.13.
    """

    def __init__(
        self, model: nn.Module, groups: Sequence[dist.ProcessGroup], device: torch.device, policy: PrecisionPolicy
    ) -> None:
        self._model, self._groups, self._device, self._policy = model, groups, device, policy
        self._in_method = False
        self._sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
        # buffers that are not saved, such as frequencies and masks, are constants
        kept = model.state_dict(keep_vars=True)
        self._shared = [name for name, _ in model.named_buffers() if name in kept]
        if self._shared:
            model.register_forward_pre_hook(self._share_buffers)
        # before the hook of torch, which gathers weights
        model.register_forward_pre_hook(ShardedPlaces(model).look, prepend=True)
        model.register_forward_hook(refuse_second_graph)
        self._modules, self._state = set(model.modules()), cast("Any", model)._get_fsdp_state()
        model.register_forward_hook(self._free_after_evaluation)
        call_before_steps(self._free)

    def register(self, names: Iterable[str]) -> None:
        """Let methods of these names use all weights, as the model's forward does, in the precision of the policy.

        Raises:
            ValueError: A name is no method.
        """
        for name in names:
            if not callable(getattr(self._model, name, None)):
                raise ValueError(f"forward_methods: {type(self._model).__name__} has no method {name!r}")
            register_fsdp_forward_method(self._model, name)
            method = getattr(self._model, name)
            setattr(self._model, name, self._around(method, method))
        kind, others = type(self._model), {*dir(nn.Module), *dir(FSDPModule), *vars(self._model)}
        for name in dir(kind):
            if not name.startswith("_") and name not in others and isinstance(getattr_static(kind, name), FunctionType):
                method = getattr(self._model, name)
                setattr(self._model, name, self._around(self._gathering(method), method))

    def _gathering(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method before whose first call of a module of the model weights are gathered."""

        def call(*args: Any, **kwargs: Any) -> Any:
            gathered = False

            def gather(module: nn.Module, _: Any) -> None:
                nonlocal gathered
                if module in self._modules:
                    handle.remove()
                    gathered = module is not self._model  # whose forward gathers by itself
                if gathered:
                    self._share_buffers()
                    self._state._pre_forward(self._model, (), {})

            handle, result = register_module_forward_pre_hook(gather), None
            try:
                result = method(*args, **kwargs)
            finally:
                handle.remove()
                if gathered:
                    self._state._post_forward(self._model, (), computed_tensors(result))
            return result

        return call

    def _around(self, method: Callable[..., Any], inside: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method as it is called from outside of forwards and such methods, and `inside` in them."""

        @wraps(inside)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._in_method or self._state._state_ctx.iter_forward_root is not None:
                return inside(*args, **kwargs)
            self._in_method = True
            try:
                with autocast(self._policy, self._device.type):
                    return refuse_second_graph(self._model, (), method(*args, **kwargs))
            finally:
                self._in_method = False
                self._free_after_evaluation()

        return call

    def _free_after_evaluation(self, *_: Any) -> None:
        if not self._in_method and not torch.is_grad_enabled():
            self._free()

    def _free(self, *_: Any) -> None:
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
