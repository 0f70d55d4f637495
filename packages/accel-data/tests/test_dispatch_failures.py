"""Ranks that rank 0 reads for end with it, and hear of what fails there."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from accel_data import prepare_data_loader
from accel_data.loaders import device_prefetch
from accel_state import AccumulationState, PeerFailed
from accel_state.transports.torch_dist import TorchDist
from accel_testing import MakeWorld, RangeDataset, RangeStream
from torch.utils.data import DataLoader, RandomSampler

#: stands in for a side stream where there is no accelerator
SIDE: Any = SimpleNamespace(send=lambda batch: (batch, None), await_copy=lambda moved, event: None)


def with_one_ahead() -> tuple[list[list[int]], list[bool], int]:
    transport, accumulation = TorchDist(), AccumulationState()
    loader = prepare_data_loader(DataLoader(RangeStream(12), 2), transport=transport, accumulation=accumulation)

    def ahead(batches: Any, epoch: Any, device: Any, non_blocking: bool) -> Any:
        return device_prefetch._ahead(batches, epoch, SIDE)

    with patch("accel_data.loaders.loader.feed", ahead):
        seen = [(batch.tolist(), accumulation.end_of_dataloader) for batch in loader]
    return [batch for batch, _ in seen], [last for _, last in seen], transport.broadcast_object(7, 0)


def test_a_round_that_is_copied_ahead_ends_the_pass_on_all_ranks(world: MakeWorld) -> None:
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
        loader.state_dict()  # type: ignore[attr-defined]
    return str(error.value)


def test_a_state_that_rank_zero_cannot_take_is_told_to_all(world: MakeWorld) -> None:
    zero, one = world(2).run(state_in_vain)
    assert zero == "the state is unreadable"
    assert one == "rank 0 could not say where it stands: OSError: the state is unreadable"
