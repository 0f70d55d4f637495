"""A batch size that fits, found by all processes together."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accel import PartialState, find_executable_batch_size
from accel_comm import CollectiveMismatch
from accel_testing import MakePool, RankFailure
from suite.toy_models import Mlp

OUT_OF_MEMORY: dict[str, Callable[[], Exception]] = {
    "torch": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    "cuda": lambda: RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    "cpu": lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you"),
    "cudnn": lambda: RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if"),
    "python": lambda: MemoryError(),
}


@pytest.fixture(autouse=True)
def few_objects() -> Iterator[None]:
    """Lets the collector, which runs after each size, leave alone what other tests and libraries have made."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_the_sizes_are_those_of_the_reference() -> None:
    """Reference 2.12: nine tenths of the last size, rounded down."""
    tried = []

    @find_executable_batch_size(starting_batch_size=128)
    def fit(batch_size: int) -> None:
        tried.append(batch_size)
        if batch_size != 8:
            raise OUT_OF_MEMORY["cuda"]()

    fit()
    expected = [128, 115, 103, 92, 82, 73, 65, 58, 52, 46, 41, 36, 32, 28, 25, 22, 19, 17, 15, 13, 11, 9, 8]
    assert tried == expected


def test_a_function_gives_the_next_size() -> None:
    sizes, tried = iter((7, 5)), []

    @find_executable_batch_size(starting_batch_size=9, reduce_batch_size_fn=lambda: next(sizes))
    def fit(batch_size: int) -> None:
        tried.append(batch_size)
        if batch_size > 5:
            raise OUT_OF_MEMORY["cuda"]()

    fit()
    assert tried == [9, 7, 5]


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
def test_every_way_to_say_out_of_memory_is_understood(kind: str) -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=10)
    def fit(batch_size: int, word: str, *, more: int) -> tuple[int, str, int]:
        """Fits."""
        tried.append(batch_size)
        if batch_size > 8:
            raise OUT_OF_MEMORY[kind]()
        return batch_size, word, more

    assert fit("word", more=3) == (8, "word", 3)
    assert fit("again", more=4) == (8, "again", 4)
    assert tried == [10, 9, 8] * 2
    assert (fit.__name__, fit.__doc__) == ("fit", "Fits.")


def test_a_real_shortage_is_understood() -> None:
    @find_executable_batch_size(starting_batch_size=4)
    def fit(batch_size: int) -> int:
        torch.empty(1 if batch_size < 4 else 10**15)
        return batch_size

    assert fit() == 3


def test_the_decorator_works_with_and_without_arguments() -> None:
    def size(batch_size: int) -> int:
        return batch_size

    assert find_executable_batch_size(size)() == 128
    assert find_executable_batch_size(size, 16)() == 16
    assert find_executable_batch_size()(size)() == 128


@pytest.mark.parametrize("start", [0, 3])
def test_there_is_no_size_below_one(start: int) -> None:
    @find_executable_batch_size(starting_batch_size=start)
    def fit(batch_size: int) -> None:
        raise MemoryError(f"no room for {batch_size}")

    with pytest.raises(RuntimeError, match="No executable batch size found, reached zero: `fit` began with") as caught:
        fit()
    assert ("(rank 0 with 1: MemoryError: no room for 1)" in str(caught.value)) == (start > 0)


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), ValueError("out of memory"), KeyboardInterrupt()])
def test_another_error_is_raised_as_it_is(error: BaseException) -> None:
    tried = []

    @find_executable_batch_size
    def fit(batch_size: int) -> None:
        tried.append(batch_size)
        raise error

    with pytest.raises(type(error)) as caught:
        fit()
    assert caught.value is error
    assert tried == [128]


def test_a_batch_size_of_the_caller_is_refused_in_words() -> None:
    @find_executable_batch_size
    def fit(batch_size: int, arg1: str = "", arg2: str = "", *, key: int = 0) -> int:
        return batch_size

    wrong: Any = fit
    with pytest.raises(TypeError, match="Batch size was passed into `fit` as the first argument") as caught:
        wrong(128, "hello", "world", key=2)
    assert "Leave it out: `fit(arg1='hello', arg2='world', key=2)`" in str(caught.value)
    with pytest.raises(TypeError, match=r"Leave it out: `fit\(arg1='hello'\)`"):
        wrong(batch_size=128, arg1="hello")
    with pytest.raises(TypeError, match="`<lambda>` takes no argument; it is passed the batch size"):
        find_executable_batch_size(lambda: None)()  # type: ignore[arg-type, misc] # the mistake
    anything = find_executable_batch_size(lambda *sizes: sizes)
    assert anything(1, 2) == (128, 1, 2)


def test_what_a_try_held_is_gone_before_the_next() -> None:
    held: list[weakref.ref[Mlp]] = []
    left: list[int] = []

    @find_executable_batch_size(starting_batch_size=3)
    def fit(batch_size: int) -> None:
        left.append(sum(one() is not None for one in held))
        model = Mlp()
        held.append(weakref.ref(model))
        model.itself = model  # a circle, which only the collector frees
        if batch_size > 1:
            raise MemoryError

    gc.disable()
    try:
        fit()
    finally:
        gc.enable()
    assert left == [0, 0, 0]


def one_is_short() -> tuple[list[int], int]:
    state = PartialState(cpu=True)
    tried = []

    @find_executable_batch_size(starting_batch_size=100)
    def fit(batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > (75 if state.process_index == 1 else 95):
            raise MemoryError
        return batch_size

    return tried, fit()


def test_all_processes_try_the_same_sizes(world: MakePool) -> None:
    assert world(2).run(one_is_short) == [([100, 90, 81, 72], 72)] * 2


def other_starts() -> list[int]:
    tried = []
    state = PartialState(cpu=True)

    @find_executable_batch_size(starting_batch_size=10 + 10 * state.process_index)
    def fit(batch_size: int) -> None:
        tried.append(batch_size)
        if batch_size > 8:
            raise MemoryError

    fit()
    return tried


def test_processes_that_start_apart_go_on_together(world: MakePool) -> None:
    assert world(2).run(other_starts) == [[10, 9, 8], [20, 9, 8]]


def no_room() -> str:
    state = PartialState(cpu=True)

    @find_executable_batch_size(starting_batch_size=2)
    def fit(batch_size: int) -> None:
        if state.process_index == 1:
            raise MemoryError("rank 1 is full")

    with pytest.raises(RuntimeError) as caught:
        fit()
    return str(caught.value)


def test_all_processes_are_told_that_no_size_is_left(world: MakePool) -> None:
    first, second = world(2).run(no_room)
    assert first == second
    assert "(rank 1 with 1: MemoryError: rank 1 is full)" in first


def one_fails_while_the_other_waits() -> str:
    state = PartialState(cpu=True)

    @find_executable_batch_size(starting_batch_size=2)
    def fit(batch_size: int) -> None:
        if state.process_index == 1:
            raise OSError("no such file")
        torch.distributed.all_reduce(torch.ones(1))  # as the backward of a model does
        raise OSError("the other has come")

    try:
        fit()
    except OSError as error:
        if state.process_index == 1:  # lets the other go on, which it could not if it were waited for
            torch.distributed.all_reduce(torch.ones(1))
        return str(error)
    return "no error"


def test_an_error_of_another_kind_is_raised_without_waiting_for_anybody(world: MakePool) -> None:
    assert world(2).run(one_fails_while_the_other_waits) == ["the other has come", "no such file"]


def one_fails() -> str:
    state = PartialState(cpu=True)

    @find_executable_batch_size(starting_batch_size=2)
    def fit(batch_size: int) -> None:
        if state.process_index == 1:
            raise OSError("no such file")

    try:
        fit()
    except OSError:
        state.wait_for_everyone()  # the script goes on
    return "no error"


def test_who_is_well_learns_that_another_has_gone_on_after_an_error(world: MakePool) -> None:
    with pytest.raises(RankFailure) as caught:
        world(2).run(one_fails)
    assert {type(error) for error in caught.value.errors.values()} == {CollectiveMismatch}
    assert "find_executable_batch_size" in str(caught.value.errors[0])


def no_run() -> int:
    @find_executable_batch_size(starting_batch_size=torch.distributed.get_rank() + 1)
    def fit(batch_size: int) -> int:
        return batch_size

    return fit()


def test_without_a_run_each_process_is_by_itself(world: MakePool) -> None:
    assert world(2).run(no_run) == [1, 2]
