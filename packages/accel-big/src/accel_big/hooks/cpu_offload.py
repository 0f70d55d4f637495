"""Move whole models to a device in turn, as the models of a pipeline are used one after the other."""

from __future__ import annotations

from typing import Any, TypeVar, final

import torch
from accel_ops import send_to_device
from torch import nn

from accel_big.hooks.model_hook import ModelHook, add_hook_to_module, remove_hook_from_module
from accel_big.maps.check_map import real_device

M = TypeVar("M", bound=nn.Module)


class CpuOffload(ModelHook):
    """A hook that keeps a model on the CPU until its forward, which takes it to a device.

    The model stays there until it is offloaded.

    Args:
        execution_device: Device of the forward. Default: the accelerator, or the CPU.
        prev_module_hook: Hook of the model to offload before the forward.
    """

    def __init__(
        self,
        execution_device: int | str | torch.device | None = None,
        prev_module_hook: UserCpuOffloadHook | None = None,
    ) -> None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        self.execution_device = real_device(execution_device or accelerator or "cpu")
        self.prev_module_hook = prev_module_hook

    def init_hook(self, module: M) -> M:
        """Move the model to the CPU."""
        return module.to("cpu")

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments on the device, after the model has moved there and the model before it has left.

        Args:
            module: Model that is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        if self.prev_module_hook is not None:
            self.prev_module_hook.offload()
        module.to(self.execution_device)
        return send_to_device(args, self.execution_device), send_to_device(kwargs, self.execution_device)


@final
class UserCpuOffloadHook:
    """A handle to a model with a `CpuOffload`."""

    def __init__(self, model: nn.Module, hook: CpuOffload) -> None:
        self.model, self.hook = model, hook

    def offload(self) -> None:
        """Move the model to the CPU, until its next forward."""
        self.model.to("cpu")

    def remove(self) -> None:
        """Remove the hook. The model stays where it is."""
        remove_hook_from_module(self.model)


def cpu_offload_with_hook(
    model: nn.Module,
    execution_device: int | str | torch.device | None = None,
    prev_module_hook: UserCpuOffloadHook | None = None,
) -> tuple[nn.Module, UserCpuOffloadHook]:
    """Keep a model on the CPU until its forward, which takes it to a device.

    Args:
        model: Model to change in place.
        execution_device: Device of the forward. Default: the accelerator, or the CPU.
        prev_module_hook: Hook of the model to offload before the forward.

    Returns:
        The same model, and a hook that moves it back.

    Raises:
        CannotRun: There is no such device.
    """
    hook = CpuOffload(execution_device, prev_module_hook)
    add_hook_to_module(model, hook, append=True)
    return model, UserCpuOffloadHook(model, hook)
