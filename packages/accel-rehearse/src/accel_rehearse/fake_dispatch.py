"""Compute with fake tensors in place of those of a device, and tell others of all operations."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, final

import torch
from torch import nn
from torch._C import _distributed_c10d
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import flop_counter
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass_type,
)

from accel_rehearse.allocations import BUFFERS, EXCHANGE, PARAMETERS, Allocations
from accel_rehearse.exchanges import NAMESPACES, ExchangeLog
from accel_rehearse.nested_tensors import bytes_of, tensors_in
from accel_rehearse.placeholders import Placeholders
from accel_rehearse.stage import SCRIPT, Stage

aten = torch.ops.aten
torchs: Any = _distributed_c10d  # of which torch has given no types
#: what asks for a number that only the device knows
_NUMBERS = {aten._local_scalar_dense.default, aten.equal.default}
_BY_MASK = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
_OF_TORCH: Any = flop_counter.flop_registry
#: formulas for floating-point operations; torch has none for the attention of the CPU
_FLOPS: Any = {
    **_OF_TORCH,
    aten._scaled_dot_product_flash_attention_for_cpu: _OF_TORCH[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _OF_TORCH[
        aten._scaled_dot_product_flash_attention_backward
    ],
}
#: operations whose kernels compute on copies of their tensors, in another layout
_RELAID = {aten.convolution.default, aten.convolution_backward.default}


@final
class FakeDispatch(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """The mode in which a script is rehearsed.

    Parameters and buffers of modules are fake, and so is what is computed from them. Real tensors, as those of data,
    stay real among themselves. In all phases but that of the script a new tensor of floats is fake; integers stay real,
    as they may steer, and are small.

    Args:
        stage: Where the script stands.
        allocations: What is told of tensors.
        exchanges: What is told of exchanges.
        placeholders: What is told of numbers that are asked for.
    """

    def __init__(
        self,
        stage: Stage,
        allocations: Allocations,
        exchanges: ExchangeLog,
        placeholders: Placeholders,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self.stage, self._allocations, self._exchanges = stage, allocations, exchanges
        self._placeholders = placeholders
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        #: floating-point operations so far, by the precision of their products
        self.flops: Counter[str] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # from 2.11 on, torch would come between an operation and the frame that asks for it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, for real or on fakes, and tell of it."""
        kwargs = kwargs or {}
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        tensors = list(tensors_in((args, kwargs)))
        fakes = any(isinstance(tensor, FakeTensor) for tensor in tensors)
        if func.namespace in NAMESPACES:
            self._exchanges.note(func, args)
            if fakes:
                self._allocations.note_all(args, EXCHANGE)
                if func.namespace == "c10d":
                    return _done(func, args)
        if fakes:
            if func in _NUMBERS:
                self._placeholders.steer(sys._getframe(1))
                return func is aten.equal.default or tensors[0].dtype != torch.bool
            if func in _BY_MASK:
                # a real mask becomes the places that it chooses, so that the shape of the result is known
                places = [
                    place
                    for mask in args[1]
                    for place in (
                        mask.nonzero().unbind(1) if type(mask) is torch.Tensor and mask.dtype == torch.bool else [mask]
                    )
                ]
                args = (args[0], places, *args[2:])
            out = self.fake.dispatch(func, types, args, kwargs)  # as torch would, by way of the tensors
            if formula := _FLOPS.get(func.overloadpacket):
                kernels: Any = torch.backends.cudnn.conv if func in _RELAID else torch.backends.cuda.matmul  # type: ignore[attr-defined] # of torch
                precision = str(tensors[0].dtype).removeprefix("torch.")
                if kernels.fp32_precision == "tf32":
                    precision = precision.replace("float32", "tf32")
                # a new one, as marks keep the one before
                self.flops = self.flops + Counter({precision: int(formula(*args, **kwargs, out_val=out))})
        elif tensors or self.stage.phase == SCRIPT:
            out = func(*args, **kwargs)
        else:
            with self.fake:
                out = func(*args, **kwargs)
            if isinstance(out, torch.Tensor) and not (out.ndim and out.is_floating_point()):
                return func(*args, **kwargs)
        if fakes or self.stage.phase != SCRIPT:
            self._allocations.note_all(out)
            if func in _RELAID:
                self._allocations.pass_by(bytes_of(tensors))
        return out

    def given(self, module: nn.Module, name: str, tensor: Any) -> Any:
        """Return the fake in place of a parameter or buffer that a module is given, as a hook of torch for all modules.

        Args:
            module: The module.
            name: Name of the tensor.
            tensor: The tensor.
        """
        if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.is_meta:
            return None
        fake = self.fake.from_tensor(tensor, static_shapes=True)
        self._allocations.note(fake, PARAMETERS if isinstance(tensor, nn.Parameter) else BUFFERS)
        return fake


def _done(func: Any, args: Any) -> Any:
    """Return what an exchange of fakes returns: the tensors that it fills, and the work that is done."""
    future: Any = torch.futures.Future()
    future.set_result(list(tensors_in(args[0])))
    work = torchs._create_work_from_future(future).boxed()
    return work if len(func._schema.returns) == 1 else (args[0], work)
