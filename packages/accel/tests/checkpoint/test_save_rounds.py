"""How many rounds of messages a save takes: each is a wait for all processes."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel.tracking import GeneralTracker
from accel.utils import ProjectConfiguration
from accel_checkpoint import CheckpointError
from accel_testing import MakePool
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset


def counted(transport: Any) -> tuple[list[str], list[str]]:
    """The exchanges of a transport from now on, and its waits for the work of another process.

    A message that only one rank receives is no exchange: the others wait for nobody.
    """
    begin, exchanges, waits = transport.recorder.begin, list[str](), list[str]()

    def count(what: str, data: str = "", *, patient: bool = False) -> Any:
        if what != "gather (to rank 0)":
            (waits if patient else exchanges).append(what)
        return begin(what, data, patient=patient)

    transport.recorder.begin = count
    return exchanges, waits


def rounds(
    folder: str, asynchronous: bool, each_machine: bool, hooks: bool, strategy: str = "auto"
) -> tuple[list[str], list[str]]:
    project = ProjectConfiguration(folder, automatic_checkpoint_naming=True, save_on_each_node=each_machine)
    accelerator = Accelerator(cpu=True, project_config=project, strategy=strategy)
    model, data = nn.Linear(2, 2), TensorDataset(torch.ones(3, 2))
    accelerator.prepare(model, AdamW(model.parameters()), DataLoader(data))
    if hooks:
        accelerator.register_save_state_pre_hook(lambda models, weights, folder: None)
    accelerator.save_state()
    exchanges, waits = counted(accelerator.run.transport)
    accelerator.save_state(asynchronous=asynchronous)
    told = list(exchanges), list(waits)
    accelerator.end_training()
    return told


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_save_takes_two_rounds(world: MakePool, tmp_path: Path, asynchronous: bool) -> None:
    """And a wait for the process that writes, which is no exchange: it has no limit of time."""
    ended = "save_state: copied" if asynchronous else "save_state: written"
    for exchanges, waits in world(2).run(rounds, str(tmp_path), asynchronous, False, False):
        assert exchanges == ["save_state: begin", ended]
        assert [what.partition(" ")[0] for what in waits] == ([] if asynchronous else ["main_process_first"])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_save_that_all_ranks_write_takes_two_rounds(world: MakePool, tmp_path: Path, asynchronous: bool) -> None:
    """They tell the main process by notes in the store when they have written theirs."""
    ended = "save_state: copied" if asynchronous else "save_state: written"
    for exchanges, waits in world(2).run(rounds, str(tmp_path), asynchronous, False, False, "fsdp2"):
        assert exchanges == ["save_state: begin", ended]
        assert waits == []


def test_hooks_take_two_rounds_more_and_a_checkpoint_of_each_machine_none(world: MakePool, tmp_path: Path) -> None:
    for exchanges, _ in world(2).run(rounds, str(tmp_path / "hooks"), False, False, True):
        assert exchanges == [f"save_state: {what}" for what in ("where", "hooks", "begin", "written")]
    for exchanges, _ in world(2).run(rounds, str(tmp_path / "each"), False, True, False):
        assert exchanges == [f"save_state: {what}" for what in ("begin", "written")]


def received(folder: str) -> tuple[int, int, int]:
    accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(folder, automatic_checkpoint_naming=True))
    transport: Any = accelerator.run.transport
    messages = type(transport.point_to_point)
    exchange, gather, lengths = type(transport).exchange, messages.gather, ([0], [0])

    def note(call: Any, most: list[int]) -> Any:
        def noted(self: Any, *given: Any) -> list[bytes]:
            payloads: list[bytes] = call(self, *given)
            most.append(max(map(len, payloads), default=0))
            return payloads

        return noted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(transport), "exchange", note(exchange, lengths[0]))
        patch.setattr(messages, "gather", note(gather, lengths[1]))
        accelerator.save_state()
    return max(lengths[0]), max(lengths[1]), len(lengths[1]) - 1


def test_random_numbers_go_to_the_rank_that_writes_and_to_no_other(world: MakePool, tmp_path: Path) -> None:
    """Each state has some 18 KB."""
    for rank, (exchanged, gathered, gathers) in enumerate(world(3).run(received, str(tmp_path))):
        assert exchanged < 1000
        assert gathers == 1
        assert (gathered > 10_000) == (rank == 0)


class OddTracker(GeneralTracker):
    """A tracker whose state JSON has not."""

    name = "odd"
    requires_logging_directory = False

    @property
    def tracker(self) -> None:
        return None

    def start(self) -> None: ...

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"began": datetime.now(), "next_step": 0}


def odd_state(folder: str) -> str:
    accelerator = Accelerator(cpu=True, log_with=OddTracker())
    accelerator.init_trackers("odd")
    with pytest.raises(CheckpointError) as refused:
        accelerator.save_state(folder)
    accelerator.wait_for_everyone()  # no rank is left in the save
    return str(refused.value)


def test_a_state_of_a_tracker_that_json_has_not_is_told_on_all(world: MakePool, tmp_path: Path) -> None:
    for words in world(2).run(odd_state, str(tmp_path / "checkpoint")):
        assert "rank 0: what the checkpoint is to say of the run: TypeError: Object of type datetime" in words
