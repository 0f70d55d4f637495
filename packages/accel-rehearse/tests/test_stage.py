"""Where a rehearsed script stands."""

from typing import Any

import pytest
import torch
from accel_rehearse.stage import BACKWARD, Stage
from torch import nn
from torch.utils.checkpoint import checkpoint


class Watched(nn.Module):
    """A layer that tells when the gradient of its input is there."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self.inner, self._tell = nn.Linear(2, 2), tell

    def forward(self, x: Any) -> Any:
        x.register_hook(self._tell)
        return self.inner(x)


def test_a_backward_is_told_by_the_module_whose_it_is() -> None:
    stage, found = Stage(), list[str]()
    model = nn.Sequential(*(Watched(lambda _: found.append(stage.handled)) for _ in range(2)))
    stage.name(model)
    for module in model.modules():
        module.register_forward_pre_hook(stage.enter)
        module.register_forward_hook(stage.leave)
    loss: Any = model(torch.ones(1, 2, requires_grad=True)).sum()
    with stage.during(BACKWARD):
        loss.backward()
    assert found == ["1.inner", "0.inner"]
    assert stage.handled == ""


@pytest.mark.parametrize("again", [False, True])
def test_a_forward_in_a_backward_is_recomputation(again: bool) -> None:
    stage = Stage()
    model = nn.Linear(2, 2)
    model.register_forward_pre_hook(stage.enter)
    model.register_forward_hook(stage.leave)
    x = torch.ones(1, 2, requires_grad=True)
    loss: Any = (checkpoint(model, x, use_reentrant=False) if again else model(x)).sum()
    assert not stage.recomputing
    with stage.during(BACKWARD):
        loss.backward()
    assert stage.recomputing is again
