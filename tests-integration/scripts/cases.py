"""What equal_weights.py trains, and what a hand-written loop trains to compare with."""

from typing import Any

import torch

EPOCHS = 3
SAMPLES = 48
GLOBAL_BATCH = 8
CASES: list[dict[str, Any]] = [
    {"shuffle": shuffle, "split": split, "optimizer_name": name}
    for name in ("SGD", "AdamW")
    for shuffle in (False, True)
    for split in (False, True)
]


def case_name(case: dict[str, Any]) -> str:
    order = "shuffled" if case["shuffle"] else "in-order"
    return f"{case['optimizer_name']}-{order}-{'split' if case['split'] else 'whole'}"


def data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
    targets = torch.randn(SAMPLES, 2, generator=generator, dtype=torch.float64)
    return torch.utils.data.TensorDataset(inputs, targets, torch.arange(SAMPLES))


def make_model() -> torch.nn.Module:
    layers = (torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    return torch.nn.Sequential(*layers).to(torch.float64)


def make_optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def by_hand(shuffle: bool, optimizer_name: str) -> tuple[dict[str, torch.Tensor], list[list[int]]]:
    """Plain PyTorch, one process, the global batch, the seed of rank 0."""
    torch.manual_seed(1000)
    model = make_model()
    optimizer = make_optimizer(optimizer_name, model)
    loader = torch.utils.data.DataLoader(data(), batch_size=GLOBAL_BATCH, shuffle=shuffle)
    served: list[list[int]] = []
    for _ in range(EPOCHS):
        served.append([])
        for inputs, targets, ids in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            served[-1] += ids.tolist()
    return model.state_dict(), served
