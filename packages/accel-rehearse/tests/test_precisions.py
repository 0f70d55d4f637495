"""Operations are counted by the precision in which their products are computed."""

from collections.abc import Callable, Iterator

import pytest
import torch
from accel_rehearse.fake_dispatch import FakeDispatch
from accel_rehearse.rehearsal import Rehearsal
from torch import nn

#: operations of a product of matrices, and of a convolution
PRODUCT, CONVOLUTION = 2 * 4 * 8 * 16, 2 * 9 * 36


@pytest.fixture
def mode() -> Iterator[FakeDispatch]:
    yield Rehearsal(3, cpu=True).mode
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = True


def _multiply(mode: FakeDispatch, dtype: torch.dtype = torch.float32) -> None:
    with mode.fake:
        x, y = torch.empty(4, 8, dtype=dtype), torch.empty(8, 16, dtype=dtype)
    with mode:
        x @ y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_products_are_counted_by_their_type(dtype: torch.dtype, mode: FakeDispatch) -> None:
    before = mode.flops
    _multiply(mode, dtype)
    assert mode.flops == {str(dtype).removeprefix("torch."): PRODUCT}
    assert not before  # which a mark keeps


def _allow() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


@pytest.mark.parametrize("allow", [_allow, lambda: torch.set_float32_matmul_precision("high")])
def test_products_are_of_tf32_where_torch_is_told_so(allow: Callable[[], None], mode: FakeDispatch) -> None:
    allow()
    _multiply(mode)
    _multiply(mode, torch.bfloat16)
    assert mode.flops == {"tf32": PRODUCT, "bfloat16": PRODUCT}


@pytest.mark.parametrize(("allowed", "precision"), [(True, "tf32"), (False, "float32")])
def test_convolutions_are_of_tf32_unless_torch_is_told_otherwise(
    allowed: bool, precision: str, mode: FakeDispatch
) -> None:
    torch.backends.cudnn.allow_tf32 = allowed
    with mode.fake:
        x, weight = torch.empty(1, 1, 8, 8), torch.empty(1, 1, 3, 3)
    with mode:
        nn.functional.conv2d(x, weight)
    assert mode.flops == {precision: CONVOLUTION}
