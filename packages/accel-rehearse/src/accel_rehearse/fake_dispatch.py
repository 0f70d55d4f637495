"""Compute with fake tensors in place of those of a device, and tell others of all operations."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn
from torch._C import _distributed_c10d
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

from accel_rehearse.allocations import BUFFERS, PARAMETERS, Allocations
from accel_rehearse.exchanges import NAMESPACES, ExchangeLog
from accel_rehearse.flops import FlopCount
from accel_rehearse.placeholders import Placeholders
from accel_rehearse.stage import Stage

aten = torch.ops.aten
torchs: Any = _distributed_c10d  # of which torch has given no types
#: what a number is that only the device knows
_NUMBERS = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default}


@final
class FakeDispatch(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """The mode in which a script is rehearsed.

    Parameters and buffers of modules are fake, and so is what is computed from them. Real tensors, as those of data,
    stay real among themselves. On the stage a new tensor of floats is fake; integers stay real, as they may steer, and
    are small.

    Args:
        stage: Where the script stands.
        allocations: What is told of tensors.
        exchanges: What is told of exchanges.
        flops: What is told of computations.
        placeholders: What gives numbers that only a device knows.
    """

    def __init__(
        self,
        stage: Stage,
        allocations: Allocations,
        exchanges: ExchangeLog,
        flops: FlopCount,
        placeholders: Placeholders,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self.stage, self._allocations, self._exchanges = stage, allocations, exchanges
        self._flops, self._placeholders = flops, placeholders
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        #: what stands for a tensor that several modules are given
        self._fakes: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, for real or on fakes, and tell of it."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(is_traceable_wrapper_subclass(tensor) for tensor in tensors):
            return NotImplemented
        fakes = any(isinstance(tensor, FakeTensor) for tensor in tensors)
        if func.namespace in NAMESPACES:
            self._exchanges.note(func, args)
            if fakes and func.namespace == "c10d":
                return _done(func, args)
        if fakes:
            if func in _NUMBERS:
                return self._placeholders.number(func, tensors[0])
            if func in _BY_MASK:
                args = (args[0], _as_indices(args[1]), *args[2:])
            out = func(*args, **kwargs)
            self._flops.note(func, args, kwargs, out)
        elif tensors or not self.stage.depth:
            out = func(*args, **kwargs)
        else:
            out = self._made(func, args, kwargs)
        if fakes or self.stage.depth:
            for leaf in tree_iter(out):
                if isinstance(leaf, torch.Tensor):
                    self._allocations.note(leaf)
        return out

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operation makes from nothing."""
        with self.fake:
            out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and (out.ndim == 0 or not (out.is_floating_point() or out.is_complex())):
            return func(*args, **kwargs)
        return out

    def parameter(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        """Return the fake in place of a parameter that a module is given, as a hook of torch for all modules.

        Args:
            module: The module.
            name: Name of the parameter.
            parameter: The parameter.
        """
        return self._faked(parameter, PARAMETERS)

    def buffer(self, module: nn.Module, name: str, buffer: torch.Tensor | None) -> Any:
        """Return the fake in place of a buffer that a module is given, as a hook of torch for all modules.

        Args:
            module: The module.
            name: Name of the buffer.
            buffer: The buffer.
        """
        return self._faked(buffer, BUFFERS)

    def _faked(self, tensor: Any, kind: str) -> Any:
        if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.is_meta:
            return None
        fake = self._fakes.get(tensor)
        if fake is None:
            with self.fake:
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            self._allocations.note(fake, kind)
            if isinstance(tensor, nn.Parameter):
                fake = nn.Parameter(fake, tensor.requires_grad)
            self._fakes[tensor] = fake
        return fake


def _done(func: Any, args: Any) -> Any:
    """Return what an exchange of fakes returns: the tensors that it fills, and the work that is done."""
    future: Any = torch.futures.Future()
    future.set_result([leaf for leaf in tree_iter(args[0]) if isinstance(leaf, torch.Tensor)])
    work = torchs._create_work_from_future(future).boxed()
    return work if len(func._schema.returns) == 1 else (args[0], work)


_BY_MASK = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


def _as_indices(indices: Any) -> list[Any]:
    """Return indices in which real masks are the places that they choose, so that the shape of the result is known."""
    places: list[Any] = []
    for index in indices:
        real = type(index) is torch.Tensor and index.dtype in (torch.bool, torch.uint8)
        places += index.nonzero().unbind(1) if real else [index]
    return places
