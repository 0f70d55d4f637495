"""Count the floating-point operations of a step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten


def _attention(query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


#: torch has no formula for the kernels of the CPU
_OF_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


class FlopCount:
    """The floating-point operations so far, by dtype of the result."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """The floating-point operations of all dtypes."""
        return self.counts.total()

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add an operation, if it is one of those that count: products of matrices, convolutions, attention.

        Args:
            func: The operation.
            args: Its arguments.
            kwargs: Its arguments by keyword.
            out: Its result.
        """
        packet = func.overloadpacket
        formula = flop_registry.get(packet) or _OF_CPU.get(packet)
        if formula is not None:
            first = out if isinstance(out, torch.Tensor) else next(one for one in out if isinstance(one, torch.Tensor))
            self.counts[str(first.dtype).removeprefix("torch.")] += formula(*args, **kwargs, out_val=out)
