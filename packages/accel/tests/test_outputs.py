"""T38: outputs are float32 by default; kept in half precision on request, and then nothing is copied."""

from typing import Any

import pytest
import torch
from accel import Accelerator, AutocastKwargs
from accel_testing import MakePool
from torch import Tensor, nn

ROWS, CLASSES = 2048, 8192


class Peaked(nn.Module):
    """A head of many classes, which remembers its output."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, CLASSES, bias=False)

    def forward(self, inputs: Tensor) -> dict[str, Any]:
        logits = self.head(inputs)
        self.address = logits.data_ptr()
        return {"logits": logits, "about": "a head"}


def outputs(keep: bool, precision: str) -> tuple[torch.dtype, bool]:
    accelerator = Accelerator(cpu=True, mixed_precision=precision, kwargs_handlers=[AutocastKwargs(keep_outputs=keep)])
    model = accelerator.prepare(Peaked())
    with torch.no_grad():
        found = model(torch.ones(ROWS, 8))["logits"]
    return found.dtype, found.data_ptr() == accelerator.unwrap_model(model).address


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("precision", "keep", "dtype", "same"),
    [
        ("no", False, torch.float32, True),
        ("bf16", False, torch.float32, False),
        ("bf16", True, torch.bfloat16, True),
        ("fp16", True, torch.float16, True),
    ],
)
def test_outputs_have_the_dtype_that_was_asked_for(
    world: MakePool, precision: str, keep: bool, dtype: torch.dtype, same: bool, size: int
) -> None:
    """T38, S68: what is kept is the very tensor, so its memory is not doubled."""
    assert world(size).run(outputs, keep, precision) == [(dtype, same)] * size
