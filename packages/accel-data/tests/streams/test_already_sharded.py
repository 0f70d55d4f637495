"""`already_sharded=True`: a stream of which each rank reads a part is left alone, and counts, places and resumes."""

import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accel_comm.transports.torch_dist import TorchDist
from accel_data import ResumeError, prepare_data_loader
from accel_ops import gather_for_metrics
from accel_state import AccumulationState
from accel_testing import MakePool
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Found = tuple[list[list[int]], list[int]]


class OwnPart(IterableDataset[Tensor]):
    """Gives rank r the first `lengths[r]` of 100 * r, 100 * r + 1 and so on; it asks for its rank when it is read."""

    def __init__(self, lengths: Sequence[int], rank: int | None = None) -> None:
        self.lengths = lengths
        self.rank = rank

    def numbers(self) -> list[int]:
        rank = dist.get_rank() if self.rank is None else self.rank
        return [100 * rank + number for number in range(self.lengths[rank])]

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        index, of = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        return map(torch.tensor, self.numbers()[index::of])


class WithShards(OwnPart):
    """Could be sharded, and must not be a second time."""

    def shard(self, num_shards: int, index: int) -> "WithShards":
        raise AssertionError("it was sharded again")


class Placed(OwnPart):
    """Says where it stands, and what it reads."""

    at = 0

    def __iter__(self) -> Iterator[Tensor]:
        numbers = self.numbers()
        while self.at < len(numbers):
            self.at += 1
            yield torch.tensor(numbers[self.at - 1])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


KINDS = {"a part": OwnPart, "a part with shards": WithShards, "a part with a place": Placed}


def everything(lengths: Sequence[int]) -> list[int]:
    return [100 * rank + number for rank, length in enumerate(lengths) for number in range(length)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_is_served_what_its_own_loader_serves(kind: str, workers: int) -> None:
    """Simulated ranks; two epochs."""
    for rank in range(4):
        stream = KINDS[kind]([12, 9, 0, 16], rank)
        plain = DataLoader(stream, 4, num_workers=0 if kind == "a part with a place" else workers)
        whole = [batch.tolist() for batch in plain]
        loader: Any = prepare_data_loader(
            plain, num_processes=4, process_index=rank, already_sharded=True, ending="join"
        )
        assert [[batch.tolist() for batch in loader] for _ in range(2)] == [whole] * 2


def served(kind: str, lengths: Sequence[int], ending: str, workers: int) -> Found:
    """This rank's batches, and what metrics hold of them."""
    transport, accumulation = TorchDist(), AccumulationState()
    plain = DataLoader(KINDS[kind](lengths), 4, num_workers=workers)
    loader = prepare_data_loader(
        plain, already_sharded=True, ending=ending, transport=transport, accumulation=accumulation
    )
    batches, metrics, lasts = [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loader:
            batches.append(batch.tolist())
            lasts.append(accumulation.end_of_dataloader)
            if ending != "join":
                metrics += gather_for_metrics(batch, transport, accumulation.active).tolist()
    transport.barrier()
    assert lasts == [False] * (len(batches) - 1) + [True] * bool(batches)
    return batches, metrics


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [[16, 16], [28, 20], [9, 17], [3, 1]])
def test_parts_of_unlike_lengths_end_under_every_policy(world: MakePool, lengths: list[int], kind: str) -> None:
    """No rank waits for another, and a metric counts each sample once."""
    pair = world(2)
    for ending in ("pad", "exact", "drop", "join"):
        results = pair.run(served, kind, lengths, ending, 0, timeout_s=20)
        counts = [len(batches) for batches, _ in results]
        seen = [one for batches, _ in results for batch in batches for one in batch]
        if ending == "join":
            assert counts == [-(-length // 4) for length in lengths]
            assert sorted(seen) == everything(lengths)
        elif ending == "drop":
            assert counts == [min(lengths) // 4] * 2
            assert len(set(seen)) == len(seen) == 4 * sum(counts)
        else:
            assert counts == [-(-max(lengths) // 4)] * 2
            assert all(sorted(metrics) == everything(lengths) for _, metrics in results)


def test_a_part_is_read_by_the_loader_workers_of_its_rank(world: MakePool) -> None:
    for _, metrics in world(2).run(served, "a part", [28, 20], "pad", 2, timeout_s=20):
        assert sorted(metrics) == everything([28, 20])


def life(kind: str, lengths: Sequence[int], stop: int | None, state: Any) -> tuple[list[int], list[int], Any]:
    """The samples of the job from a state on, in the pass that goes on and in the next, and the state at a batch."""
    transport, accumulation = TorchDist(), AccumulationState()
    loader: Any = prepare_data_loader(
        DataLoader(KINDS[kind](lengths), 4), already_sharded=True, transport=transport, accumulation=accumulation
    )
    warnings.simplefilter("error" if kind == "a part with a place" else "ignore")
    if state is not None:
        loader.load_state_dict(state)
    passes: list[list[int]] = [[], []]
    for metrics in passes:
        for number, batch in enumerate(loader, start=1):
            metrics += gather_for_metrics(batch, transport, accumulation.active).tolist()
            if number == stop:
                return metrics, [], loader.state_dict()
    return passes[0], passes[1], None


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_goes_on_from_every_batch_with_its_parts(world: MakePool, kind: str) -> None:
    """Also after one of the parts has ended; the epoch after it is whole."""
    lengths, pair = [28, 17], world(2)
    for stop in range(1, 8):
        (before, _, state), (_, _, other) = pair.run(life, kind, lengths, stop, None, timeout_s=20)
        assert all(state[entry] == other[entry] for entry in ("epoch", "consumed", "taken", "sources"))
        assert state["consumed"] == len(before)
        for rest, following, _ in pair.run(life, kind, lengths, None, state, timeout_s=20):
            if stop == 7 and sorted(rest) == everything(lengths):
                continue  # nothing was left, and the next epoch came
            assert sorted(before + rest) == everything(lengths), stop
            assert sorted(following) == everything(lengths), stop


def test_parts_of_another_number_of_ranks_are_refused(world: MakePool) -> None:
    """What each rank gives depends on how many there are: nothing can go on from elsewhere."""
    _, _, state = world(2).run(life, "a part with a place", [16, 16], 2, None)[0]
    for size in (1, 4):
        for text in world(size).run(refusal, [16] * size, state):
            assert re.search(r"\b2 (processes|ranks)\b", text)


def refusal(lengths: Sequence[int], state: Any) -> str:
    loader: Any = prepare_data_loader(
        DataLoader(Placed(lengths), 4), already_sharded=True, transport=TorchDist(), accumulation=AccumulationState()
    )
    with pytest.raises(ResumeError) as error:
        loader.load_state_dict(state)
    return str(error.value)


def dispatched() -> str:
    plain = DataLoader(OwnPart([8, 8]), 4)
    with pytest.raises(ValueError, match="already_sharded") as error:
        prepare_data_loader(plain, transport=TorchDist(), already_sharded=True, dispatch_batches=True)
    return str(error.value)


def test_what_one_rank_sends_is_no_part_of_each(world: MakePool) -> None:
    for told in world(2).run(dispatched):
        assert "dispatch_batches" in told


def test_one_process_is_served_its_stream_as_it_is() -> None:
    loader: Any = prepare_data_loader(DataLoader(OwnPart([9], 0), 4), already_sharded=True)
    assert list(chain.from_iterable(batch.tolist() for batch in loader)) == list(range(9))
