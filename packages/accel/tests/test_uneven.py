"""Ranks with unequal numbers of batches train to their ends."""

from collections.abc import Iterator

import torch
from accel import Accelerator
from accel_testing import MakeWorld, Mlp, RangeDataset
from torch.optim import SGD
from torch.utils.data import DataLoader, Sampler

SIZES = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 2, 4, 1]


class Varying(Sampler[list[int]]):
    """13 batches whose sizes differ."""

    def __iter__(self) -> Iterator[list[int]]:
        first = 0
        for size in SIZES:
            yield list(range(first, first + size))
            first += size

    def __len__(self) -> int:
        return len(SIZES)


def trained() -> tuple[int, list[int], list[torch.Tensor]]:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare_data_loader(
        DataLoader(RangeDataset(sum(SIZES)), batch_sampler=Varying()), ending="join"
    )
    model = Mlp()
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    batches, seen = 0, list[int]()
    with accelerator.join_uneven_inputs([model]):
        for ids in loader:
            optimizer.zero_grad()
            accelerator.backward(model(ids.float().unsqueeze(1).expand(-1, 8) / 42).square().mean())
            optimizer.step()
            batches += 1
            seen += ids.tolist()
    weights = [weight.detach().clone() for weight in accelerator.unwrap_model(model).parameters()]
    return batches, seen, weights


def test_seven_batches_beside_six_train_to_the_end(world: MakeWorld) -> None:
    """T23: within join_uneven_inputs both ranks end with the same weights, and every batch was trained on once."""
    (seven, zero, weights), (six, one, others) = world(2).run(trained, timeout_s=10)
    assert (seven, six) == (7, 6)
    assert sorted(zero + one) == list(range(sum(SIZES)))
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)
    assert not torch.equal(weights[0], next(Mlp().parameters()))
