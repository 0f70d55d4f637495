"""Checkpoints in memory: when they are taken, what is in them, which one `resume` takes, and what is refused."""

import logging
import shutil
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel.utils import ProjectConfiguration
from accel_checkpoint import Manifest, read_manifest
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.retention import list_checkpoints
from accel_state import CannotRun, release
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a launcher would have made."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINTS", str(folder))
    return folder


class Training:
    """A script that trains a model on one process."""

    def __init__(self, folder: Path, every: int | str | None = 5, *, resumes: bool = True, **settings: Any) -> None:
        release()
        project = ProjectConfiguration(
            folder / "project", automatic_checkpoint_naming=True, memory_checkpoint_every=every
        )
        self.accelerator = Accelerator(cpu=True, project_config=project, **settings)
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.1)
        schedule: Any = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        data: Any = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
        self.model, self.optimizer, self.schedule, self.loader = self.accelerator.prepare(
            model, optimizer, schedule, data
        )
        self.resumed = self.accelerator.resume() if resumes else None
        self.steps = 0

    def run(self, steps: int) -> None:
        """Train for so many batches, and leave the loop in the middle of the body."""
        for _ in self.batches(steps):
            pass

    def train(self, inputs: Any, factor: float = 1.0) -> None:
        """Train on a batch."""
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(inputs).square().mean() * factor)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()

    def batches(self, steps: int, epochs: int = 100) -> Iterator[int]:
        for _ in range(self.loader.iteration, epochs):
            for (inputs,) in self.loader:
                self.train(inputs)
                self.steps += 1
                self.settled()  # a checkpoint that is due while another is written is taken later
                yield self.steps
                if self.steps == steps:
                    return

    def weights(self) -> torch.Tensor:
        return torch.cat([value.flatten() for value in self.model.state_dict().values()])

    def settled(self) -> None:
        """Wait for what is written behind."""
        if self.accelerator.checkpoints.memory is not None:
            self.accelerator.checkpoints.memory.wait()


def checkpoints_in(memory: Path) -> Path:
    """The checkpoints of the only project."""
    (found,) = memory.iterdir()
    return found / "checkpoints"


def kept(memory: Path) -> list[Manifest]:
    return [read_manifest(path) for _, path in list_checkpoints(checkpoints_in(memory))]


def steps_of(memory: Path) -> list[int]:
    return [manifest.moment[1] for manifest in kept(memory)]


def test_the_two_newest_of_each_fifth_step_are_kept(tmp_path: Path, memory: Path) -> None:
    training = Training(tmp_path)
    for step in training.batches(23):
        # the newest is taken when the next batch is asked for
        assert steps_of(memory) == [due for due in (5, 10, 15, 20) if due < step][-2:]
    assert not (tmp_path / "project" / "checkpoints").exists()


def test_the_weights_of_a_resumed_run_are_those_of_the_unbroken_run(tmp_path: Path, memory: Path) -> None:
    """Dropout, the schedule and the order of samples go on; also over the end of an epoch, which has eight steps."""
    whole = Training(tmp_path / "whole", None)
    whole.run(30)
    for stop in (7, 8, 9, 17, 23):
        broken = Training(tmp_path / "broken")
        broken.run(stop)
        taken = steps_of(memory)[-1]
        again = Training(tmp_path / "broken")
        assert again.resumed is not None
        assert again.resumed.parent == checkpoints_in(memory)
        again.run(30 - taken)
        torch.testing.assert_close(again.weights(), whole.weights(), rtol=0, atol=0)
        for path in (checkpoints_in(memory)).iterdir():
            Filesystem().remove(path)


def test_a_step_at_the_end_of_an_epoch_is_saved_when_the_next_begins(tmp_path: Path, memory: Path) -> None:
    """What a script does after an epoch belongs to it: a schedule by epochs, say."""
    training = Training(tmp_path, 8)
    ended = []
    for epoch in range(2):
        for _ in training.batches(8 * (epoch + 1), epoch + 1):
            pass
        training.settled()
        ended.append(steps_of(memory))
        with torch.no_grad():
            training.model[2].bias.fill_(epoch)
    assert ended == [[], [8]]
    again = Training(tmp_path)
    assert again.resumed is not None
    assert again.loader.iteration == 1
    assert again.model[2].bias.item() == 0


def test_no_checkpoint_is_taken_inside_of_a_window(tmp_path: Path, memory: Path) -> None:
    training = Training(tmp_path, 1, gradient_accumulation_steps=4)
    for step in training.batches(9):
        assert steps_of(memory)[-1:] == ([(step - 1) // 4] if step > 4 else [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Training(tmp_path, 1, gradient_accumulation_steps=4)
    assert again.resumed is not None


def test_an_evaluation_between_steps_takes_no_checkpoint(tmp_path: Path, memory: Path) -> None:
    training = Training(tmp_path)
    others = training.accelerator.prepare(DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8))
    for step in training.batches(12):
        before = steps_of(memory)
        for (inputs,) in others:
            training.model(inputs)
        training.settled()
        assert steps_of(memory) == before, step


def test_a_loop_without_optimizer_steps_takes_no_checkpoint(tmp_path: Path, memory: Path) -> None:
    training = Training(tmp_path, 1)
    for _ in range(2):
        for (inputs,) in training.loader:
            training.model(inputs)
    assert kept(memory) == []


def test_steps_that_fp16_skips_count(tmp_path: Path, memory: Path) -> None:
    training = Training(tmp_path, 3, mixed_precision="fp16")
    for (inputs,) in training.loader:
        training.train(inputs, float("inf"))
        training.settled()
    assert training.optimizer.ended == 8
    assert steps_of(memory) == [0, 0]  # none was made


def test_a_layer_that_comes_later_is_in_the_checkpoints_after_it(tmp_path: Path, memory: Path) -> None:
    training = Training(tmp_path)
    for step in training.batches(12):
        if step == 7:
            more = training.accelerator.prepare(nn.Linear(1, 1))
            training.optimizer.add_param_group({"params": list(more.parameters())})
    training.settled()
    assert ["model_1" in manifest.items for manifest in kept(memory)] == [False, True]


def test_a_newer_checkpoint_of_the_disk_is_taken_before_memory(tmp_path: Path, memory: Path) -> None:
    training = Training(tmp_path)
    training.run(7)
    path = training.accelerator.save_state()
    assert Training(tmp_path).resumed == path


def test_resume_says_which_checkpoint_it_takes(tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    training = Training(tmp_path)
    training.run(7)
    with caplog.at_level(logging.WARNING, "accel"):
        Training(tmp_path)
    words = [record.getMessage() for record in caplog.records if "resumed from" in record.getMessage()]
    folder = checkpoints_in(memory) / "checkpoint_0"
    assert len(words) == 1
    assert words[0].startswith(f"resumed from the checkpoint {folder}, in memory: step 5, ")
    assert words[0].endswith(" s old")


def test_a_damaged_checkpoint_in_memory_is_passed_over(tmp_path: Path, memory: Path) -> None:
    training = Training(tmp_path)
    training.run(12)
    newest = checkpoints_in(memory) / "checkpoint_1" / "model.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    assert Training(tmp_path).resumed == checkpoints_in(memory) / "checkpoint_0"


def test_automatic_names_do_not_count_checkpoints_in_memory(tmp_path: Path, memory: Path) -> None:
    training = Training(tmp_path)
    training.run(12)
    assert training.accelerator.save_state().name == "checkpoint_0"
    assert training.accelerator.save_state().name == "checkpoint_1"


def test_a_script_that_does_not_resume_is_told_so_once(
    tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "accel"):
        Training(tmp_path, resumes=False).run(20)
    words = [record.getMessage() for record in caplog.records if "accelerator.resume()" in record.getMessage()]
    assert len(words) == 1
    assert kept(memory) == []


def test_too_little_room_is_refused_at_the_first_one_in_one_message(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Words end the process as they end a script: with no traceback beneath them."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(2000, 1000, 1000))
    training = Training(tmp_path)
    with pytest.raises(SystemExit) as ended:
        training.run(7)
    assert ended.value.code == 1
    (words,) = [record.getMessage() for record in caplog.records if "was not kept" in record.getMessage()]
    assert "each on this machine, and need " in words
    assert words.endswith("name a folder of a local disk, --memory_checkpoint_dir FOLDER, or leave them out")
    assert not checkpoints_in(memory).exists()


def test_a_later_one_that_cannot_be_written_is_told_and_training_goes_on(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path)
    for step in training.batches(20):
        if step == 7:
            monkeypatch.setattr(Filesystem, "write", _no_room)
        if step == 17:
            monkeypatch.undo()
    training.settled()
    assert steps_of(memory) == [5]
    words = [record.getMessage() for record in caplog.records if "was not kept" in record.getMessage()]
    assert len(words) == 2
    training.accelerator.end_training()


def _no_room(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_nothing_is_kept_where_no_launcher_owns_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun, srun and plain Python."""
    monkeypatch.delenv("ACCEL_MEMORY_CHECKPOINTS", raising=False)
    with pytest.raises(CannotRun, match="nobody would remove them, as no `accel launch` watches these processes"):
        Training(tmp_path)


def test_the_script_wins_over_the_launcher(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINT_EVERY", "2")
    training = Training(tmp_path, 3)
    training.run(8)
    assert steps_of(memory) == [3, 6]


def test_each_project_of_a_script_has_its_own(tmp_path: Path, memory: Path) -> None:
    for name in ("one", "other"):
        training = Training(tmp_path / name, 3)
        assert training.resumed is None
        training.run(8)
    assert len(list(memory.iterdir())) == 2


@pytest.mark.parametrize("every", [0, "5m", 2.5])
def test_an_interval_of_another_form_is_refused(every: Any) -> None:
    with pytest.raises(ValueError, match=r"memory_checkpoint_every=.*expected a whole number of optimizer steps"):
        ProjectConfiguration(memory_checkpoint_every=every)


def test_one_that_is_due_while_another_is_written_is_taken_later(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is held by the copy, and never by the writing."""
    training, goes_on, write = Training(tmp_path, 2), threading.Event(), Filesystem.write
    monkeypatch.setattr(training, "settled", lambda: None)

    def waits(self: Filesystem, path: Path, content: Any) -> Any:
        assert goes_on.wait(60)
        return write(self, path, content)

    monkeypatch.setattr(Filesystem, "write", waits)
    for step in training.batches(9):
        if step == 7:
            assert kept(memory) == []
            goes_on.set()
            monkeypatch.undo()
            training.settled()
    training.settled()
    assert steps_of(memory)[0] == 2
    assert steps_of(memory)[-1] in (7, 8)


def test_no_checkpoint_is_taken_inside_of_local_steps(
    tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path)
    with training.accelerator.training.local_steps(training.model):
        training.run(20)
    assert kept(memory) == []
    assert [record.getMessage() for record in caplog.records if "inside of LocalSGD" in record.getMessage()]


def test_a_loop_that_reads_a_window_at_once_loses_no_sample(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another checkpoint is written when the first batch of the window is asked for."""
    training = Training(tmp_path, 1, gradient_accumulation_steps=2)
    kept_in_memory: Any = training.accelerator.checkpoints.memory
    asks = iter([True])
    monkeypatch.setattr(type(kept_in_memory._saver), "busy", property(lambda saver: next(asks, False)))
    batches, positions = iter(training.loader), list[Any]()
    for _ in range(4):
        window = [next(batches), next(batches)]
        training.settled()
        positions.append(steps_of(memory))
        for (inputs,) in window:
            training.train(inputs)
    assert positions == [[], [], [2], [2, 3]]


@pytest.mark.parametrize("threaded", [True, False])
def test_a_loop_that_reads_ahead_takes_no_checkpoint_and_is_told(
    threaded: bool, tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, 1)
    batches: Any = iter(training.loader)
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(next, batches).result() if threaded else next(batches)
        for _ in range(5):
            (inputs,) = ahead
            if not threaded:
                ahead = next(batches)
            training.train(inputs)
            if threaded:
                ahead = pool.submit(next, batches).result()
            training.settled()
    assert kept(memory) == []
    assert len([record for record in caplog.records if "before they are trained on" in record.getMessage()]) == 1


def test_a_loop_that_has_read_ahead_takes_the_checkpoint_at_the_next_step(tmp_path: Path, memory: Path) -> None:
    training, left = Training(tmp_path, 4), list[Any]()
    batches: Any = iter(training.loader)
    for asked in (1, 1, 1, 2, 1, 0, 1):  # it is due at the fifth of these
        left += [next(batches) for _ in range(asked)]
        training.train(left.pop(0)[0])
    training.settled()
    assert steps_of(memory) == [6]


def test_a_checkpoint_in_memory_is_not_held_by_a_slow_tracker(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves the step alone that a save behind is recorded at."""
    training = Training(tmp_path, 2, log_with="local")
    tracking: Any = training.accelerator.checkpoints._tracking
    training.accelerator.init_trackers("run")
    training.accelerator.log({"loss": 1.0}, step=7)
    training.accelerator.save_state()
    saved_at = tracking._saved_at
    training.accelerator.log({"loss": 1.0}, step=8)
    patience_s = list[float]()
    monkeypatch.setattr(type(tracking._pumps[0]), "flush", lambda pump, timeout_s: patience_s.append(timeout_s))
    training.run(4)
    training.settled()
    assert [list(manifest.about["trackers"]) for manifest in kept(memory)] == [["local"]]
    assert (saved_at, tracking._saved_at) == ({"step": 7}, saved_at)
    assert len(patience_s) == 1
    assert patience_s[0] <= 1
    monkeypatch.undo()
    training.accelerator.end_training()
