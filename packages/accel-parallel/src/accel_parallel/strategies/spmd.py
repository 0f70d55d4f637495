"""Train on all XLA devices in one process, where the compiler divides batches and parameters over them (SPMD)."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, final

import torch
from accel_amp import Precision, PrecisionPolicy
from accel_state import CannotRun, Run
from torch import nn

from accel_parallel.empty_weights import refuse_empty
from accel_parallel.one_process import OneProcess

#: the axis of devices over which both samples and parameters are divided
AXIS = "fsdp"


def show_devices_as_one() -> None:
    """Make torch_xla show all devices of the machine as one.

    Raises:
        CannotRun: The device was used before.
    """
    if find_spec("torch_xla") is None:
        return  # `Spmd.check` says so
    runtime = import_module("torch_xla.runtime")
    if runtime.is_spmd():
        return
    if import_module("torch_xla")._XLAC._xla_get_spmd_config_is_locked():
        raise CannotRun(
            "strategy spmd",
            [
                "an XLA device was used already, and cannot be divided any more; make Accelerator(strategy='spmd')"
                " first, or call torch_xla.runtime.use_spmd() at the top of the script"
            ],
        )
    runtime.use_spmd()


@final
class Spmd(OneProcess):
    """The strategy that divides each batch, and each parameter, over XLA devices.

    A batch is divided along dim 0, and a parameter along its longest dim that can be. The values are those of one
    device, and a script sees whole tensors.
    """

    name: ClassVar[str] = "spmd"
    begin = staticmethod(show_devices_as_one)

    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """Return a reason without XLA, and beside other processes."""
        problems = []
        if run.placed_on.type != "xla":
            problems.append(
                f"it divides work over XLA devices, and this process is on {run.placed_on.type}; set PJRT_DEVICE, and"
                " install torch_xla with the torch that it was built for"
            )
        if run.topology.world_size > 1:
            problems.append(
                f"one process drives all devices, and this job has {run.topology.world_size}; start one process"
            )
        return problems

    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """Shard the parameters of a model over the devices.

        Args:
            model: The model.
            run: The current run.
            policy: Dtypes of forwards.

        Returns:
            The model itself.

        Raises:
            ValueError: The model is on the meta device, or torch compiles it.
        """
        refuse_empty(model)
        if any(module._compiled_call_impl is not None for module in model.modules()):
            raise ValueError(
                "torch.compile with several XLA devices: torch_xla 2.9 computes wrong gradients then; leave it out, as"
                " XLA compiles every step already"
            )
        for parameter in model.parameters():
            _divide(parameter.data, self._mesh, longest_divisible(parameter.shape, self._mesh.size()))
        model.register_forward_pre_hook(self._divide_inputs, with_kwargs=True)
        return model

    @cached_property
    def _mesh(self) -> Any:
        devices = import_module("torch_xla.runtime").global_runtime_device_count()
        return import_module("torch_xla.distributed.spmd").Mesh(list(range(devices)), (devices,), (AXIS,))

    def _divide_inputs(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Shard the tensors of a call along dim 0, if each device gets as many samples."""
        for tensor in _tensors([args, kwargs]):
            whole = tensor.device.type == "xla" and tensor.dim() and not _is_divided(tensor)
            if whole and tensor.shape[0] % self._mesh.size() == 0:
                _divide(tensor, self._mesh, 0)


def longest_divisible(shape: Sequence[int], parts: int) -> int | None:
    """Return the longest of the dims that `parts` divides, or None if it divides none."""
    divisible = [dim for dim, length in enumerate(shape) if length >= parts and length % parts == 0]
    return max(divisible, key=lambda dim: shape[dim], default=None)


def _divide(tensor: torch.Tensor, mesh: Any, dim: int | None) -> None:
    spec = tuple(AXIS if place == dim else None for place in range(tensor.dim()))
    import_module("torch_xla.distributed.spmd").mark_sharding(tensor, mesh, spec)


def _is_divided(tensor: torch.Tensor) -> bool:
    return bool(import_module("torch_xla")._XLAC._get_xla_sharding_spec(tensor))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


STRATEGY = Spmd
