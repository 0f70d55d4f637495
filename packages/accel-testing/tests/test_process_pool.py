from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accel_testing import MakePool, ProcessPool, stretched
from pool_jobs import is_running, rank, start_a_long_child, total
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader


def add(a: int, b: int) -> int:
    return a + b + dist.get_rank()


def variables(names: list[str]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def group_is_open() -> bool:
    return dist.is_initialized()


def open_my_own_group() -> float:
    # torch's stub lacks it
    store = dist.FileStore(os.environ["ACCEL_TESTING_STORE"] + "/mine", 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
    return float(total()[0])


def random_numbers() -> tuple[float, float]:
    return random.random(), float(torch.rand(()))


def talk(words: str) -> None:
    print(words, dist.get_rank())
    print("to stderr", file=sys.stderr)
    os.write(1, b"past Python\n")
    subprocess.run(["echo", "from a child"], check=True)


def read_all(workers: int) -> list[int]:
    return [int(i) for batch in DataLoader(RangeDataset(8), batch_size=2, num_workers=workers) for i in batch]


def facts() -> tuple[int, int, bool, str]:
    daemon = bool(multiprocessing.current_process().daemon)
    return os.getpid(), torch.get_num_threads(), daemon, multiprocessing.get_start_method()


@dataclass
class Point:
    x: int


def swap(point: Point) -> Point:
    return Point(-point.x)


REMEMBERED: list[int] = []


def remember(x: int) -> list[int]:
    REMEMBERED.append(x)
    return REMEMBERED


@pytest.fixture
def fresh_pool() -> Iterator[ProcessPool]:
    with ProcessPool(2) as pool:
        yield pool


@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_come_in_the_order_of_the_ranks(world: MakePool, size: int) -> None:
    assert world(size).run(rank) == list(range(size))


def test_arguments_reach_every_rank(world: MakePool) -> None:
    assert world(2).run(add, 10, 5) == [15, 16]


def test_an_all_reduce_adds_up_over_the_ranks(world: MakePool) -> None:
    for result in world(2).run(total):
        assert result.tolist() == [3.0, 30.0]


def test_classes_and_functions_of_a_test_file_cross_in_both_directions(world: MakePool) -> None:
    assert world(2).run(swap, Point(3)) == [Point(-3), Point(-3)]


def test_a_worker_loads_a_test_file_once(world: MakePool) -> None:
    pair = world(2)
    pair.run(remember, 1)
    assert pair.run(remember, 2) == [[1, 2], [1, 2]]


def test_each_pool_has_fresh_workers(world: MakePool) -> None:
    first, second = world(2), world(2)
    pids = {pid for pair in (first, second) for pid, *_ in pair.run(facts)}
    assert len(pids) == 4


def test_workers_run_one_thread_and_may_have_children(world: MakePool) -> None:
    for _, threads, daemon, start in world(2).run(facts):
        assert (threads, daemon, start) == (1, False, "fork")


def test_a_data_loader_with_workers_works_inside_a_worker(world: MakePool) -> None:
    assert world(2).run(read_all, 2) == [list(range(8))] * 2


def test_each_rank_is_told_its_rank_in_the_environment(world: MakePool) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"]
    for index, found in enumerate(world(2).run(variables, names)):
        assert list(found.values()) == [str(index), "2", str(index), "2", "1"]


def test_variables_of_the_test_reach_the_workers(world: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_BY_THE_TEST", "yes")
    monkeypatch.setenv("ACCEL_STORE_PORT", "1")
    assert world(1).run(variables, ["SET_BY_THE_TEST", "ACCEL_STORE_PORT"]) == [
        {"SET_BY_THE_TEST": "yes", "ACCEL_STORE_PORT": None}
    ]


def test_without_join_no_group_is_open(world: MakePool) -> None:
    pair = world(2, join=False)
    assert pair.run(group_is_open) == [False, False]
    assert pair.run(variables, ["MASTER_ADDR"]) == [{"MASTER_ADDR": "127.0.0.1"}] * 2


def test_without_join_a_function_can_open_its_own_group(world: MakePool) -> None:
    assert world(2, join=False).run(open_my_own_group) == [3.0, 3.0]


def test_all_ranks_of_all_pools_draw_the_same_random_numbers(world: MakePool) -> None:
    drawn = world(2).run(random_numbers) + world(1).run(random_numbers)
    assert len(set(drawn)) == 1


def test_what_a_rank_prints_is_kept_for_it_alone(world: MakePool) -> None:
    pair = world(2)
    pair.run(talk, "hello from")
    for index in range(2):
        assert pair.output(index) == f"hello from {index}\nto stderr\npast Python\nfrom a child\n"


def test_the_output_of_a_rank_that_is_not_there_is_refused(world: MakePool) -> None:
    with pytest.raises(ValueError, match="ranks 0 to 1"):
        world(2).output(2)


def test_a_pool_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        ProcessPool(0)


def test_a_closed_pool_leaves_no_process_and_no_file(fresh_pool: ProcessPool) -> None:
    pids = [pid for pid, *_ in fresh_pool.run(facts)]
    children = fresh_pool.run(start_a_long_child)
    store = Path(str(fresh_pool.run(variables, ["ACCEL_TESTING_STORE"])[0]["ACCEL_TESTING_STORE"]))
    assert store.exists()
    fresh_pool.close()
    fresh_pool.close()
    assert not store.parent.exists()
    assert not any(is_running(pid) for pid in pids)
    wait_until_gone(children)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + stretched(60)
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(is_running(pid) for pid in pids)
