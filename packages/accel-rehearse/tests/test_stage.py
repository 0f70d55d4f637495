"""Where a rehearsed script stands."""

import torch
from accel_rehearse.stage import BACKWARD, Stage
from torch import nn


class Noted(torch.autograd.Function):
    """Notes in the backward which module is handled."""

    stage: Stage
    found: list[str]

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        Noted.found.append(Noted.stage.handled)
        return gradient


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(Noted.apply(x))  # type: ignore[no-any-return, no-untyped-call]


def test_a_backward_is_told_by_the_module_whose_it_is() -> None:
    model = nn.Sequential(Layer(), Layer())
    Noted.stage, Noted.found = stage, found = Stage(), list[str]()
    stage.name(model)
    for module in model.modules():
        module.register_forward_pre_hook(stage.enter)
        module.register_forward_hook(stage.leave)
    loss = model(torch.ones(1, 2, requires_grad=True)).sum()
    with stage.during(BACKWARD):
        loss.backward()
    assert found == ["1.inner", "0.inner"]
    assert stage.handled == ""
