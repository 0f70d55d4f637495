"""What ranks without shared memory tell each other up and down a tree; the fixture's worlds have none."""

import os
import re
from pathlib import Path

import pytest
import torch.distributed as dist
from accel_comm import CollectiveMismatch
from accel_comm.transports.agreement import BLOCK
from accel_comm.transports.binomial_tree import BinomialTree
from accel_comm.transports.header import BARE
from accel_comm.transports.torch_dist import TorchDist
from accel_state import RunRequest, acquire, release
from accel_testing import MakePool


def trees() -> list[object]:
    rank, size = dist.get_rank(), dist.get_world_size()
    tree, found = BinomialTree(rank, size, 64), list[object]()
    for number in range(3):
        found.append(
            tree.all_reduce(bytes([rank + number + 1]), lambda some: b"".join(one.rstrip(b"\0") for one in some))
        )
        found.append(tree.gather(bytes([rank + number]) * 70))
    return found


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8])
def test_a_tree_of_any_size_joins_and_gathers_in_rank_order_and_tells_all(size: int, world: MakePool) -> None:
    expected: list[object] = []
    for number in range(3):
        whole = bytes(rank + number + 1 for rank in range(size))
        expected += [whole.ljust(64, b"\0"), [bytes([rank + number]) * 70 for rank in range(size)]]
    assert world(size).run(trees) == [expected] * size


def exchanged(lengths: list[int]) -> list[list[int]]:
    transport = TorchDist()
    share = (BLOCK - BARE) // transport.size - 2
    return [
        list(map(len, transport.exchange("lengths", bytes(max(0, share + lengths[(transport.rank + turn) % 3])))))
        for turn in range(3)
    ]


def test_payloads_at_the_edge_of_what_fits_come_whole(world: MakePool) -> None:
    """Some in the block, some not: those that fit come too where another does not."""
    share = (BLOCK - BARE) // 3 - 2
    for extra in ([0, 0, 0], [1, 0, -9999], [-9999] * 3, [-9999, 1, 1]):
        for found in world(3).run(exchanged, extra):
            assert found == [[max(0, share + extra[(rank + turn) % 3]) for rank in range(3)] for turn in range(3)]


def gathered(target: int) -> list[bytes]:
    transport = TorchDist()
    return transport.point_to_point.gather(b"x" * transport.rank * 9000, [0, 9000, 18000], target)


def test_one_rank_receives_payloads_of_any_length(world: MakePool) -> None:
    for target in range(3):
        whole = [b"", b"x" * 9000, b"x" * 18000]
        assert world(3).run(gathered, target) == [whole if rank == target else [] for rank in range(3)]


def disagree(other: int) -> list[str]:
    transport, found = TorchDist(), list[str]()
    for call in ("gather", "agree"):
        try:
            if transport.rank == other:
                transport.exchange("another", b"x" * 5000)
            elif call == "gather":
                transport.exchange("gather", b"y")
            else:
                transport.agree("agree", b"about", b"part")
        except CollectiveMismatch as error:
            found.append(str(error))
        found.append(str(transport.agree("after", part=bytes([transport.rank]), join=max)))
    return found


@pytest.mark.parametrize("other", [0, 2, 4])
def test_one_rank_that_calls_something_else_is_told_to_all_with_its_line(other: int, world: MakePool) -> None:
    """T4: at the root, in the middle and at a leaf; and the next exchange is right."""
    everyone = world(5).run(disagree, other)
    assert everyone == [everyone[0]] * 5
    here = re.escape(Path(__file__).name)
    for text, what in zip(everyone[0][::2], ("gather", "agree"), strict=True):
        for rank in range(5):
            name = "another" if rank == other else what
            assert re.search(rf"\n  rank {rank}: {name} at \S*{here}:\d+\n", text)
    assert everyone[0][1::2] == [str([b"\4"])] * 2


def disagree_at_one_line(share_memory: bool) -> str:
    os.environ["ACCEL_SHARED_MEMORY"] = str(int(share_memory))
    transport = acquire(RunRequest(cpu=True)).transport
    try:
        transport.exchange("gather" if transport.rank == 0 else "reduce", b"x")
    except CollectiveMismatch as error:
        return str(error)
    finally:
        release()
    return "agreed"


@pytest.mark.parametrize("share_memory", [False, True])
def test_different_calls_of_one_line_are_told_apart(share_memory: bool, world: MakePool) -> None:
    """T4: a function that is given what to call."""
    for text in world(2).run(disagree_at_one_line, share_memory):
        assert re.search(r"\n  rank 0: gather at .*\n  rank 1: reduce at ", text)


def unlike() -> list[object]:
    transport = TorchDist()
    return [
        transport.agree("reduce", bytes([transport.rank == 3]), b"part" * transport.rank, b"".join),
        transport.agree("reduce", b"a", b"p" if transport.rank == 1 else b""),
    ]


def test_ranks_whose_data_is_unlike_know_it_all(world: MakePool) -> None:
    assert world(4).run(unlike) == [[None, [b"p"]]] * 4


def too_much() -> str:
    transport = TorchDist()
    try:
        transport.agree("reduce", part=bytes(transport.inline_bytes + 1))
    except ValueError as error:
        return str(error)
    return "sent"


def test_a_part_that_does_not_fit_is_refused(world: MakePool) -> None:
    room = BLOCK - BARE
    assert (
        world(2).run(too_much) == [f"reduce: a part of {room + 1} bytes about 0; {room} and 16 fit into a message"] * 2
    )
