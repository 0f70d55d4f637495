"""A model for each layout of processes, and all its numbers as whole tensors."""

from __future__ import annotations

from typing import Any

import torch
from accel import Accelerator, ParallelismConfig
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

PLAN = {"blocks.0": "colwise", "blocks.1": "rowwise"}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one process": (1, {}),
    "ddp": (2, {"strategy": "ddp"}),
    "fsdp2": (2, {"strategy": "fsdp2"}),
    "hsdp": (4, {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)}),
    "fsdp2 of four": (4, {"strategy": "fsdp2"}),
    "tp": (2, {"parallelism_config": ParallelismConfig(tp_size=2, tp_plan=PLAN)}),
    "fsdp2 and tp": (4, {"parallelism_config": ParallelismConfig(dp_shard_size=2, tp_size=2, tp_plan=PLAN)}),
    "ddp and tp": (4, {"parallelism_config": ParallelismConfig(dp_replicate_size=2, tp_size=2, tp_plan=PLAN)}),
}


class Odd(nn.Module):
    """Tied and frozen weights, a number, a buffer, and lengths that two and four ranks cannot share evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])
        self.frozen = nn.Linear(6, 5).requires_grad_(False)
        self.last = nn.Linear(5, 1)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(3))
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        hidden = hidden * self.scale
        outputs: Tensor = self.head(hidden).sum() + self.last(self.frozen(hidden)).sum()
        return outputs


def whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().clone() if isinstance(value, Tensor) else value


def prepared(ways: dict[str, Any]) -> tuple[Accelerator, Any, Any]:
    accelerator = Accelerator(cpu=True, **ways)
    torch.manual_seed(accelerator.process_index)
    model = Odd()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(trained, lr=0.1))
    return accelerator, model, optimizer


def state(accelerator: Accelerator, model: Any, optimizer: Any) -> dict[str, Any]:
    """All numbers, whole, by the names of parameters."""
    inner = accelerator.unwrap_model(model)
    numbers = {name: whole(value) for name, value in inner.state_dict().items()}
    names = {id(parameter): name for name, parameter in inner.named_parameters()}
    for parameter, slots in optimizer.optimizer.state.items():
        numbers |= {f"{names[id(parameter)]}/{slot}": whole(value) for slot, value in slots.items()}
    return numbers


def loaded(ways: dict[str, Any], folder: str) -> dict[str, Any]:
    """All numbers of a layout that has loaded a checkpoint."""
    accelerator, model, optimizer = prepared(ways)
    accelerator.load_state(folder)
    return state(accelerator, model, optimizer)
