"""Ranks that rank 0 reads for end with it, and hear of what fails there."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from accel_comm import PeerFailed
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_data.loaders import device_prefetch
from accel_state import AccumulationState
from accel_testing import MakePool
from suite.toy_models import RangeDataset, RangeStream
from torch.utils.data import DataLoader, Dataset, RandomSampler

#: stands in for a stream for copies where there is no accelerator
SIDE: Any = SimpleNamespace(send=lambda batch: (batch, None), await_copy=lambda copied: None)


def with_one_ahead() -> tuple[list[list[int]], list[bool], int]:
    transport, accumulation = TorchDist(), AccumulationState()
    loader = prepare_data_loader(DataLoader(RangeStream(12), 2), transport=transport, accumulation=accumulation)

    def ahead(batches: Any, epoch: Any, device: Any, non_blocking: bool) -> Any:
        return device_prefetch._one_ahead(batches, epoch, SIDE)

    with patch("accel_data.loaders.loader.on_device", ahead):
        seen = [(batch.tolist(), accumulation.end_of_dataloader) for batch in loader]
    return [batch for batch, _ in seen], [last for _, last in seen], transport.broadcast_object(7, 0)


def test_a_round_that_is_copied_ahead_ends_the_pass_on_all_ranks(world: MakePool) -> None:
    for rank, (batches, lasts, after) in enumerate(world(2).run(with_one_ahead)):
        assert batches == [[start + 2 * rank, start + 2 * rank + 1] for start in (0, 4, 8)]
        assert lasts == [False, False, True]
        assert after == 7


class NoState(RandomSampler):
    """Cannot say where it stands."""

    def state_dict(self) -> dict[str, Any]:
        raise OSError("the state is unreadable")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def state_in_vain() -> str:
    loader = prepare_data_loader(
        DataLoader(RangeDataset(8), 2, sampler=NoState(range(8))), transport=TorchDist(), dispatch_batches=True
    )
    with pytest.raises((OSError, PeerFailed)) as error:
        loader.state_dict()  # type: ignore[attr-defined] # a prepared loader has it
    return str(error.value)


def test_a_state_that_rank_zero_cannot_take_is_told_to_all(world: MakePool) -> None:
    zero, one = world(2).run(state_in_vain)
    assert zero == "the state is unreadable"
    assert one == "rank 0 could not say where it stands: OSError: the state is unreadable"


class Identity(Dataset[int]):
    """Its samples are their numbers."""

    def __getitem__(self, index: int) -> int:
        return index


class FailsOnce(RandomSampler):
    """Its first pass fails at a sample; the numbers say which epoch an order is of."""

    epoch = -1

    def __init__(self, length: int, fails_at: int) -> None:
        super().__init__(range(length))
        self.fails_at: int | None = fails_at

    def __iter__(self) -> Iterator[int]:
        for number in range(len(self)):
            if number == self.fails_at:
                self.fails_at = None
                raise OSError("no order")
            yield 100 * self.epoch + number

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def with_a_failure(fails_at: int) -> tuple[str, int, int, list[list[int]]]:
    """What a failed pass raises, the epoch after it, that after another pass, and what the other pass serves."""
    loader: Any = prepare_data_loader(
        DataLoader(Identity(), 2, sampler=FailsOnce(8, fails_at)), transport=TorchDist(), dispatch_batches=True
    )
    with pytest.raises((OSError, PeerFailed)) as error:
        list(loader)
    after = loader.iteration
    served = [batch.tolist() for batch in loader]
    return str(error.value), after, loader.iteration, served


@pytest.mark.parametrize(("fails_at", "doing", "epoch"), [(0, "begin the pass", 0), (6, "read the next batch", 1)])
def test_ranks_count_alike_the_epochs_of_which_one_failed(
    world: MakePool, fails_at: int, doing: str, epoch: int
) -> None:
    """A pass that could not begin is no epoch; a pass that failed on its way is."""
    zero, one = world(2).run(with_a_failure, fails_at)
    assert zero[0] == "no order"
    assert one[0] == f"rank 0 could not {doing}: OSError: no order"
    assert zero[1:3] == one[1:3] == (epoch, epoch + 1)
    served = [sample for parts in zip(zero[3], one[3], strict=True) for part in parts for sample in part]
    assert served == [100 * epoch + number for number in range(8)]
