"""Count the floating-point operations of a step."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import flop_counter

aten = torch.ops.aten
torchs: Any = flop_counter  # of which torch has given no types


def _attention(query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return int(torchs.sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return int(torchs.sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


#: torch has no formula for the kernels of the CPU
_OF_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


class FlopCount:
    """The floating-point operations so far."""

    total = 0

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add an operation, if it is one of those that count: products of matrices, convolutions, attention.

        Args:
            func: The operation.
            args: Its arguments.
            kwargs: Its arguments by keyword.
            out: Its result.
        """
        packet = func.overloadpacket
        formula: Any = torchs.flop_registry.get(packet) or _OF_CPU.get(packet)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=out)
