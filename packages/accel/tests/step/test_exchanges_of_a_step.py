"""How many exchanges of accel's own the host makes in a training step, beside those that torch queues for gradients."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports.binomial_tree import BinomialTree
from accel_testing import MakePool
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

#: arguments of Accelerator, whether gradients are clipped, whether losses have weights, and exchanges of a step
KINDS: dict[str, tuple[dict[str, Any], bool, bool, int]] = {
    "ddp": ({"strategy": "ddp"}, False, False, 0),
    "ddp, clipped": ({"strategy": "ddp"}, True, False, 0),
    "ddp, fp16, clipped": ({"strategy": "ddp", "mixed_precision": "fp16"}, True, False, 0),
    "ddp, accumulated": ({"strategy": "ddp", "gradient_accumulation_steps": 2}, True, False, 0),
    "ddp, weighted": ({"strategy": "ddp"}, False, True, 1),
    "fsdp2": ({"strategy": "fsdp2"}, False, False, 0),
    "fsdp2, clipped": ({"strategy": "fsdp2"}, True, False, 0),
    "fsdp2, accumulated": ({"strategy": "fsdp2", "gradient_accumulation_steps": 2}, True, False, 0),
    "fsdp2, two models in turn": ({"strategy": "fsdp2"}, False, False, 0),
    # whether any part has overflowed
    "fsdp2, fp16, clipped": ({"strategy": "fsdp2", "mixed_precision": "fp16"}, True, False, 1),
}


def exchanges(ways: dict[str, Any], clip: bool, weighted: bool, in_turn: bool) -> list[str]:
    """Names of the exchanges in the second half of an epoch, when all is agreed."""
    accelerator = Accelerator(cpu=True, **ways)
    torch.manual_seed(0)
    raw = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    if ways["strategy"] == "fsdp2":
        raw.unused = nn.Parameter(torch.ones(4))  # torch's container of ddp would wait for its gradient
    loader = DataLoader(TensorDataset(torch.rand(64, 4), torch.arange(64) % 3), batch_size=2)
    model, optimizer, loader = accelerator.prepare(raw, torch.optim.AdamW(raw.parameters()), loader)
    critic = accelerator.prepare(nn.Linear(3, 1)) if in_turn else None
    names: list[str] = []
    begin = FlightRecorder.begin

    def noted(recorder: FlightRecorder, what: str, *args: Any, **kwargs: Any) -> str:
        names.append(what)
        return begin(recorder, what, *args, **kwargs)

    with patch.object(FlightRecorder, "begin", noted):
        for number, (inputs, labels) in enumerate(loader):
            if number == 8:
                names.clear()
            with accelerator.accumulate(model):
                if critic is not None:
                    accelerator.backward(critic(model(inputs).detach()).mean())
                    critic.zero_grad()
                loss = cross_entropy(model(inputs), labels, reduction="sum" if weighted else "mean")
                accelerator.backward(loss, **({"weight": len(labels)} if weighted else {}))
                if clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if number == 13:
                return names
    return names


@pytest.mark.parametrize("kind", KINDS)
def test_the_host_exchanges_nothing_in_a_step_that_needs_nothing(world: MakePool, kind: str) -> None:
    ways, clip, weighted, expected = KINDS[kind]
    for names in world(2).run(exchanges, ways, clip, weighted, "in turn" in kind):
        assert len(names) == expected * 6, names


class Shards(IterableDataset[Tensor]):
    """A stream that each rank reads a part of."""

    num_shards = 2

    def shard(self, num_shards: int, index: int) -> "Shards":
        return self

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.rand(40, 4))


def votes_between_machines() -> tuple[int, int]:
    """The votes on batches that were exchanged in the main thread, and in others, in a part of a pass over a stream."""
    os.environ["ACCEL_SHARED_MEMORY"] = "0"
    accelerator = Accelerator(cpu=True, strategy="ddp")
    model = nn.Linear(4, 1)
    loader = DataLoader(Shards(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    main, threads, exchange = threading.get_ident(), list[int](), BinomialTree.all_reduce

    def noted(tree: BinomialTree, mine: bytes, join: Callable[[Sequence[bytes]], bytes]) -> bytes:
        threads.append(threading.get_ident())
        return exchange(tree, mine, join)

    with patch.object(BinomialTree, "all_reduce", noted):
        for number, inputs in enumerate(loader):
            if number == 2:
                threads.clear()
            accelerator.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
            if number == 12:
                break
    in_main = threads.count(main)
    return in_main, len(threads) - in_main


def test_the_main_thread_exchanges_no_votes_on_batches_between_machines(world: MakePool) -> None:
    """It reads each a batch later: the vote on the last of ten batches may be under way, as that on the first was."""
    for in_main, behind in world(2).run(votes_between_machines):
        assert in_main == 0
        assert behind in (9, 10, 11)
