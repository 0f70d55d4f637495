"""Who does what, and who waits for whom."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, final

import pytest
import torch
import torch.distributed as dist
from accel_comm import PeerFailed
from accel_comm.transports.single import Single
from accel_state import PartialState, ProcessControl, Run, Topology
from accel_state.devices.cpu import Cpu
from accel_state.split_inputs import split
from accel_testing import MakePool, RankFailure
from suite.toy_models import RangeDataset

PATIENCE = timedelta(seconds=20)
# 2 machines with 2 processes each
FOUR = [
    Topology(rank=rank, world_size=4, local_rank=rank % 2, local_world_size=2, node_rank=rank // 2) for rank in range(4)
]


@final
class At(ProcessControl):
    """The process at one place, as far as that can be told without the others."""

    def __init__(self, topology: Topology) -> None:
        self._run = Run(topology, Cpu(), torch.device("cpu"), Single())

    @property
    def run(self) -> Run:
        return self._run


def on_two_machines() -> PartialState:
    """In a worker: the state of this rank, when every two ranks have a machine of their own."""
    rank = int(os.environ["RANK"])
    os.environ.update(LOCAL_RANK=str(rank % 2), LOCAL_WORLD_SIZE="2", GROUP_RANK=str(rank // 2))
    return PartialState(cpu=True)


def store(name: str) -> Any:
    """In a worker: what the ranks tell each other past the process group."""
    path = os.path.join(os.environ["ACCEL_TESTING_STORE"], name)
    return dist.FileStore(path, int(os.environ["WORLD_SIZE"]))  # type: ignore[attr-defined] # torch's stub lacks it


def is_never_told(told: Any, key: str) -> bool:
    try:
        told.wait([key], timedelta(seconds=0.3))
    except RuntimeError as error:
        return "timeout" in str(error)
    return False


def test_one_process_of_each_machine_and_one_of_the_job_is_main() -> None:
    """Feature rows S82 and S83."""
    states = [At(topology) for topology in FOUR]
    assert [bool(state.is_local_main_process) for state in states] == [True, False, True, False]
    assert [bool(state.is_main_process) for state in states] == [True, False, False, False]
    assert [bool(state.is_last_process) for state in states] == [False, False, False, True]


def test_attribute_and_call_say_the_same() -> None:
    """Decision 2, feature rows S82 and S83."""
    for state in map(At, FOUR):
        assert state.is_main_process() is bool(state.is_main_process)
        assert state.is_local_main_process() is bool(state.is_local_main_process)
        assert state.is_last_process() is bool(state.is_last_process)


def test_the_place_of_a_process_has_the_names_that_scripts_know() -> None:
    """Feature row S120."""
    state = At(FOUR[3])
    assert (state.num_processes, state.process_index, state.local_process_index) == (4, 3, 1)
    assert state.use_distributed is True
    assert At(Topology()).use_distributed is False
    assert state.device == torch.device("cpu")
    assert state.distributed_type == "MULTI_CPU"


def two_machines() -> tuple[bool, bool]:
    state = on_two_machines()
    state.print("hello from", state.process_index)
    state.on_local_main_process(print)("downloaded by", state.process_index)
    state.on_main_process(print)("uploaded by", state.process_index)
    return state.is_local_main_process(), state.is_main_process()


def test_print_and_download_happen_once_a_machine_and_uploads_once(world: MakePool) -> None:
    """Feature rows S82, S83, S85 and S87, on 2 machines with 2 processes each."""
    four = world(4)
    assert four.run(two_machines) == [(True, True), (False, False), (True, False), (False, False)]
    outputs = [four.output(rank).splitlines() for rank in range(4)]
    # gloo of torch 2.9 prints a line of its own
    printed = [[line for line in lines if not line.startswith("[Gloo] ")] for lines in outputs]
    assert printed == [
        ["hello from 0", "downloaded by 0", "uploaded by 0"],
        [],
        ["hello from 2", "downloaded by 2"],
        [],
    ]


@pytest.mark.parametrize("rank", range(4))
def test_a_decorated_function_runs_where_it_should_or_returns_none(rank: int) -> None:
    """Feature row S87, reference 2.7."""
    state = At(FOUR[rank])

    def who(greeting: str, *, name: str) -> str:
        """Says who."""
        return f"{greeting} {name}"

    def called(decorated: Callable[..., str | None]) -> bool:
        result = decorated("I am", name="r")
        assert result in ("I am r", None)
        assert (decorated.__name__, decorated.__doc__) == ("who", "Says who.")
        return result is not None

    assert called(state.on_main_process(who)) is (rank == 0)
    assert called(state.on_local_main_process(who)) is (rank in (0, 2))
    assert called(state.on_last_process(who)) is (rank == 3)
    assert called(state.on_process(who, process_index=2)) is (rank == 2)
    assert called(state.on_process(process_index=2)(who)) is (rank == 2)
    assert called(state.on_process(who)) is (rank == 0)
    assert called(state.on_local_process(who, local_process_index=1)) is (rank in (1, 3))
    assert called(state.on_local_process(local_process_index=1)(who)) is (rank in (1, 3))
    assert called(state.on_local_process(who)) is (rank in (0, 2))


def test_a_single_process_runs_everything() -> None:
    """Feature rows S76 and S87."""
    state = At(Topology())
    ran: list[str] = []
    for decorate in (state.on_main_process, state.on_local_main_process, state.on_last_process, state.on_process):
        decorate(ran.append)(decorate.__name__)
    assert len(ran) == 4
    with state.main_process_first(), state.local_main_process_first():
        ran.append("inside")
    assert ran[-1] == "inside"


def test_one_process_waits_for_nobody_and_opens_no_group() -> None:
    """Feature row S86."""
    PartialState(cpu=True).wait_for_everyone()
    assert not dist.is_initialized()


def waits() -> bool:
    """Rank 0 waits; rank 1 does not come until it has seen that rank 0 is still there."""
    state, told = PartialState(cpu=True), store("waits")
    if state.process_index == 1:
        told.wait(["rank 0 is at the barrier"], PATIENCE)
        still_there = is_never_told(told, "rank 0 has left")
        state.wait_for_everyone()
        return still_there
    told.set("rank 0 is at the barrier", "")
    state.wait_for_everyone()
    told.set("rank 0 has left", "")
    return True


def test_the_fast_one_waits_for_the_slow_one(world: MakePool) -> None:
    """Feature row S86."""
    assert world(2).run(waits) == [True, True]


def goes_first(kind: str, file: Path) -> bool:
    """Whoever goes first does not write until it has seen that the other one, which is there, has not."""
    state = on_two_machines()
    main, context = state.is_main_process, state.main_process_first
    if kind == "local":
        main, context = state.is_local_main_process, state.local_main_process_first
    told, rank, alone = store(kind), state.process_index, True
    others = [1, 2, 3] if kind == "global" else [rank + 1]
    if not main:
        told.set(f"{rank} is there", "")
    with context():
        if main:
            told.wait([f"{other} is there" for other in others], PATIENCE)
            alone = all(is_never_told(told, f"{other} is in") for other in others)
        told.set(f"{rank} is in", "")
        with file.open("a") as lines:
            lines.write(f"{rank}\n")
    return alone


def test_the_main_process_goes_first(world: MakePool, tmp_path: Path) -> None:
    """Feature row S87, reference 2.7: the file starts with the line of the main process."""
    file = tmp_path / "lines"
    assert world(4).run(goes_first, "global", file) == [True] * 4
    lines = file.read_text().split()
    assert lines[0] == "0"
    assert sorted(lines) == ["0", "1", "2", "3"]


def test_the_main_process_of_each_machine_goes_first(world: MakePool, tmp_path: Path) -> None:
    """Feature row S87."""
    file = tmp_path / "lines"
    assert world(4).run(goes_first, "local", file) == [True] * 4
    lines = file.read_text().split()
    assert lines.index("0") < lines.index("1")
    assert lines.index("2") < lines.index("3")


def first_one_fails(kind: str) -> None:
    state = on_two_machines()
    first = state.main_process_first if kind == "global" else state.local_main_process_first
    with first():
        if state.is_local_main_process:
            raise KeyError("no such data set")
        print("prepared data that is not there")


def test_a_failure_of_the_first_is_told_to_the_others(world: MakePool) -> None:
    two = world(2)
    with pytest.raises(RankFailure) as failure:
        two.run(first_one_fails, "global")
    errors = failure.value.errors
    assert isinstance(errors[0], KeyError)
    assert isinstance(errors[1], PeerFailed)
    assert str(errors[1]) == "the process that had to go first failed: rank 0: KeyError: 'no such data set'"
    assert "not there" not in two.output(1)


def test_a_failure_is_told_on_its_machine(world: MakePool) -> None:
    with pytest.raises(RankFailure) as failure:
        world(4).run(first_one_fails, "local")
    errors = failure.value.errors
    assert [type(errors[rank]) for rank in range(4)] == [KeyError, PeerFailed, KeyError, PeerFailed]
    assert str(errors[1]).endswith("rank 0: KeyError: 'no such data set'")
    assert str(errors[3]).endswith("rank 2: KeyError: 'no such data set'")


def a_follower_fails() -> str:
    state = PartialState(cpu=True)
    try:
        with state.main_process_first():
            if not state.is_main_process:
                raise OSError("disk full")
    except OSError as error:
        return str(error)
    return "went well"


def test_a_failure_of_a_follower_is_its_own(world: MakePool) -> None:
    assert world(2).run(a_follower_fails) == ["went well", "disk full"]


def pieces() -> tuple[list[int], dict[str, list[int]]]:
    state = PartialState(cpu=True)
    with state.split_between_processes([0, 1, 2, 3, 4]) as plain:
        pass
    with state.split_between_processes({"a": [1, 2, 3]}, apply_padding=True) as padded:
        pass
    return plain, padded


def test_inputs_are_split_between_processes(world: MakePool) -> None:
    """Reference 2.7."""
    assert world(2).run(pieces) == [([0, 1, 2], {"a": [1, 2]}), ([3, 4], {"a": [3, 3]})]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_every_rank_is_padded_with_the_last_of_all(size: int) -> None:
    """Also a rank whose own piece is shorter, and is not the last."""
    pieces = [split(range(7), rank, size, padding=True) for rank in range(size)]
    plain = [split(range(7), rank, size) for rank in range(size)]
    longest = max(map(len, plain))
    assert [list(piece) for piece in pieces] == [[*piece, *[6] * (longest - len(piece))] for piece in plain]


def pieces_of_datasets() -> tuple[list[int], list[int]]:
    state = PartialState(cpu=True)
    data = RangeDataset(5)
    with state.split_between_processes(data) as plain, state.split_between_processes(data, True) as padded:
        return [int(plain[at]) for at in range(len(plain))], [int(padded[at]) for at in range(len(padded))]


def test_datasets_are_split_between_processes(world: MakePool) -> None:
    assert world(1).run(pieces_of_datasets) == [([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])]
    assert world(2).run(pieces_of_datasets) == [([0, 1, 2], [0, 1, 2]), ([3, 4], [3, 4, 4])]
