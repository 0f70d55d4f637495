"""Batches come to the device in their order; on an accelerator the next one is on its way meanwhile."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accel_data import prepare_data_loader
from accel_data.loaders import device_prefetch
from accel_data.resume.epoch_pass import EpochPass
from accel_ops import copy_stream
from accel_state import AccumulationState
from suite.recording_device import RecordingDevice
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader


class NoStream:
    """Stands in for a stream for copies where there is no accelerator, and notes what it was asked for."""

    def __init__(self, device: object = None) -> None:
        self.calls: list[str] = []

    def send(self, batch: Any) -> tuple[Any, str]:
        self.calls.append(f"send {batch}")
        return batch, f"event {batch}"

    def await_copy(self, copied: str) -> None:
        self.calls.append(copied.replace("event", "await"))


def told(count: int, epoch: EpochPass) -> Any:
    for number in range(count):
        epoch.last, epoch.at = number == count - 1, number
        yield number


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_next_batch_is_on_its_way_before_one_is_handed_out(count: int) -> None:
    side, epoch = NoStream(), EpochPass("loader")
    seen = []
    for batch in device_prefetch._one_ahead(told(count, epoch), epoch, side):  # type: ignore[arg-type] # a stand-in
        seen.append((batch, epoch.last, epoch.at))
        side.calls.append(f"work {batch}")
    assert seen == [(number, number == count - 1, number) for number in range(count)]
    if count == 3:
        expected = "send 0, send 1, await 0, work 0, send 2, await 1, work 1, await 2, work 2"
        assert ", ".join(side.calls) == expected


def test_nothing_is_touched_on_a_machine_without_an_accelerator() -> None:
    batches = iter([object()])
    if not torch.accelerator.is_available():
        assert device_prefetch.on_device(batches, EpochPass("loader"), "cpu", non_blocking=True) is batches
    assert device_prefetch.on_device(batches, EpochPass("loader"), None, non_blocking=True) is batches


def test_the_place_is_that_of_the_batch_in_hand_when_one_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state counts what the script was given, and not what is on its way."""
    side = NoStream()
    monkeypatch.setattr(
        "accel_data.loaders.loader.on_device",
        # a stand-in
        lambda batches, epoch, device, non_blocking: device_prefetch._one_ahead(batches, epoch, side),  # type: ignore[arg-type]
    )
    accumulation = AccumulationState()
    loader: Any = prepare_data_loader(DataLoader(RangeDataset(10), 2), accumulation=accumulation)
    places = [(loader.state_dict()["consumed"], accumulation.end_of_dataloader) for _ in loader]
    assert places == [(2, False), (4, False), (6, False), (8, False), (10, True)]


@pytest.fixture
def gpu() -> Iterator[RecordingDevice]:
    copy_stream._stream_for_copies.cache_clear()
    with RecordingDevice().installed() as installed:
        yield installed
    copy_stream._stream_for_copies.cache_clear()


def test_a_copy_waits_for_what_was_asked_of_the_device_before(gpu: RecordingDevice) -> None:
    """The memory of the copy may be that of a batch which the current stream still reads."""
    batches = iter([torch.ones(2), torch.zeros(2)])
    moved = list(device_prefetch.on_device(batches, EpochPass("loader"), "cuda:0", non_blocking=True))
    assert [batch.device.type for batch in moved] == ["cuda", "cuda"]
    send = ["stream 1 waits for current stream", "copy in on stream 1: 8 bytes, pageable"]
    assert gpu.calls == ["new stream 1", *send, *send, *["current stream waits for the copies of stream 1"] * 2]


class Sentences:
    """Has a `to`, as tokenised text of transformers."""

    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids

    def to(self, device: torch.device) -> "Sentences":
        return Sentences(self.ids.to(device))


def test_an_object_that_moves_itself_is_copied_after_the_wait_too(gpu: RecordingDevice) -> None:
    batches = iter([Sentences(torch.ones(2))])
    (moved,) = device_prefetch.on_device(batches, EpochPass("loader"), "cuda:0", non_blocking=True)
    assert moved.ids.device.type == "cuda"
    wait, copy = gpu.calls.index("stream 1 waits for current stream"), "copy in on stream 1: 8 bytes"
    assert gpu.calls[wait + 1].startswith(copy)


def test_a_packed_sequence_comes_ahead_with_its_sizes_on_the_cpu(gpu: RecordingDevice) -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 1), torch.zeros(2, 1)])
    (moved,) = device_prefetch.on_device(iter([packed]), EpochPass("loader"), "cuda:0", non_blocking=True)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("cuda", "cpu")
    assert "current stream waits for the copies of stream 1" in gpu.calls


def test_all_passes_copy_on_one_stream_of_the_device(gpu: RecordingDevice) -> None:
    for _ in range(3):
        for _ in device_prefetch.on_device(iter([torch.ones(2)]), EpochPass("loader"), "cuda:0", non_blocking=True):
            pass
    assert [call for call in gpu.calls if "new" in call] == ["new stream 1"]


def test_a_device_without_a_number_is_the_current_one_of_each_pass(
    gpu: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in (0, 1, 1):
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda index=index: index)
        assert len(list(device_prefetch.on_device(iter([1]), EpochPass("loader"), "cuda", non_blocking=True))) == 1
    assert [call for call in gpu.calls if "new" in call] == ["new stream 1", "new stream 2"]
