"""What `prepare` leaves on objects, and what does not keep them alive."""

import gc
import weakref
from typing import Any

from accel import Accelerator
from suite.toy_models import RangeDataset
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader


def test_an_accelerator_that_nobody_holds_is_freed_at_once() -> None:
    """With a loader and a pass that was begun: memory does not wait for the collector of cycles."""

    def read() -> list[Any]:
        accelerator = Accelerator(cpu=True)
        loader: Any = accelerator.prepare(DataLoader(RangeDataset(8), batch_size=2))
        passing = iter(loader)
        next(passing)
        return [weakref.ref(one) for one in (accelerator, loader, loader.gradient_state)]

    gc.disable()
    try:
        assert [one() for one in read()] == [None] * 3
    finally:
        gc.enable()


def test_what_is_prepared_is_marked_for_libraries() -> None:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters())
    ready: Any = Accelerator(cpu=True).prepare(
        model, optimizer, DataLoader(RangeDataset(8)), LambdaLR(optimizer, float)
    )
    assert all(one._is_accelerate_prepared for one in ready)
