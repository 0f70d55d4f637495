"""A consumption log proves what was served, or is refused with the lines that break the proof."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import ConsumptionLog, prepare_data_loader
from accel_state.errors import CannotRun
from accel_testing import MakePool
from accel_verify.command import COMMAND
from accel_verify.consumption_log import ConsumptionLogError, ServedRange, verify
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader

Line = dict[str, Any]


def loader(path: Path, n: int = 20, size: int = 2, seed: int = 3, **more: Any) -> Any:
    own = torch.Generator().manual_seed(seed)
    plain = DataLoader(RangeDataset(n), size, shuffle=True, generator=own)
    return prepare_data_loader(plain, consumption_log=ConsumptionLog(path), **more)


def crashing_history(path: Path, draws: random.Random) -> None:
    """A run that is killed between states, and goes on from the newest at another world size."""
    state, done = None, 0
    while done < 3:
        world = draws.choice([1, 2, 4])
        one = loader(path, size=4 // world, num_processes=world, process_index=0)
        if state is not None:
            one.load_state_dict(state)
            done = one.iteration
        for _ in range(3 - done):
            iterator = iter(one)
            for _ in iterator:
                if draws.random() < 0.3:
                    state = one.state_dict()
                if draws.random() < 0.1:
                    # killed: nothing is written any more
                    one._epochs.consumption_log = None
                    iterator.close()
                    break
            else:
                state, done = one.state_dict(), one.iteration
                continue
            break


@pytest.mark.parametrize("seed", range(20))
def test_a_history_of_crashes_and_resizes_is_proved(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "served.jsonl"
    crashing_history(path, random.Random(seed))
    assert [(one.epoch, one.upto, one.complete) for one in verify(path)] == [
        (0, 20, True),
        (1, 20, True),
        (2, 20, True),
    ]


def test_a_pass_that_was_left_is_complete_as_far_as_it_went(tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    one = loader(path)
    for _ in one:
        break
    list(one)
    assert verify(path) == [ServedRange("0", 0, 2, "samples", False, 1), ServedRange("0", 1, 20, "samples", True, 1)]


def history(path: Path) -> list[Line]:
    """Epoch 0, epoch 1 to sample 8, and the rest of it and epoch 2 by another loader."""
    first = loader(path)
    list(first)
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    state = first.state_dict()
    first._epochs.consumption_log = None
    iterator.close()
    second = loader(path)
    second.load_state_dict(state)
    list(second)
    list(second)
    return [json.loads(line) for line in path.read_text().splitlines()]


def without(number: int) -> Callable[[list[Line]], list[Line]]:
    return lambda lines: lines[:number] + lines[number + 1 :]


def changed(number: int, **entries: Any) -> Callable[[list[Line]], list[Line]]:
    return lambda lines: [line | entries if at == number else line for at, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (without(0), "line 1: epoch 0 ends at 20, and was never begun"),
        (without(1), "epoch 1 begins, and epoch 0 has no end"),
        (without(2), "epoch 1 is resumed at 8, and was never begun"),
        (without(4), "epoch 2 begins, and epoch 1 has no end"),
        (changed(3, order="00000000"), "line 4: epoch 1 is resumed with another order"),
        (changed(3, dataset="other"), "resumed with another dataset"),
        (changed(3, of=40), "resumed with another length"),
        (changed(4, at=6), "epoch 1 ends at 6, before 8, where it was resumed"),
        (changed(4, at=22), "epoch 1 served 22 samples of 20"),
        (changed(4, at=18), "epoch 1 ends at 18 of 20 samples"),
        (changed(5, epoch=3), "epoch 3 begins, and epoch 2 was never served"),
        (lambda lines: [*lines[:2], lines[1] | {"event": "left", "at": 4}, *lines[2:]], "epoch 0 ends twice"),
    ],
)
def test_a_doctored_log_is_refused_by_line(
    tmp_path: Path, forge: Callable[[list[Line]], list[Line]], words: str
) -> None:
    path = tmp_path / "served.jsonl"
    lines = history(path)
    verify(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in forge(lines)))
    with pytest.raises(ConsumptionLogError) as error:
        verify(path)
    assert words in str(error.value)


def test_more_than_was_served_cannot_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    one = loader(path)
    for number, _ in enumerate(one):
        if number == 2:
            state = one.state_dict()
            break
    state["consumed"], state["digest"] = 10, None
    again = loader(path)
    again.load_state_dict(state)
    list(again)
    with pytest.raises(ConsumptionLogError, match="resumed at 10, and only 6 were served: 4 are lost"):
        verify(path)


@pytest.mark.parametrize("text", ["", "not a line\n", '{"loader": "0"}\n', '{"loader": "0", "event": "start", "epo'])
def test_what_is_no_log_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "served.jsonl"
    path.write_text(text)
    with pytest.raises(ConsumptionLogError):
        verify(path)


def test_a_log_that_is_not_there_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "served.jsonl")


def two_epochs(path: Path) -> None:
    one = loader(path, transport=TorchDist())
    list(one)
    list(one)


def test_one_rank_writes_for_the_job(world: MakePool, tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    world(2).run(two_epochs, path)
    assert [(one.epoch, one.upto, one.complete) for one in verify(path)] == [(0, 20, True), (1, 20, True)]


def run(tokens: list[str]) -> int:
    code: int = COMMAND.main(tokens, "accel verify", standalone_mode=False)
    return code


def test_the_command_proves_a_log_or_refuses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "served.jsonl"
    lines = history(path)
    assert run(["--consumption_log", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"accel verify: {path} proves that each sample was served once",
        "  loader 0, epoch 0: samples 0 to 20",
        "  loader 0, epoch 1: samples 0 to 20 in 2 pieces",
        "  loader 0, epoch 2: samples 0 to 20",
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in without(1)(lines)))
    assert run([f"--consumption_log={path}"]) == 1
    assert "epoch 1 begins, and epoch 0 has no end" in capsys.readouterr().out
    with pytest.raises(CannotRun, match="there is no consumption log"):
        run(["--consumption_log", str(tmp_path / "nothing")])
