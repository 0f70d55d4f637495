from collections import UserDict
from typing import Any

import pytest
import torch
from accel_ops import send_to_device
from named_pairs import Pair
from suite.recording_device import RecordingDevice


class Movable:
    """Has a `to`, and nothing else of a tensor."""

    where = "cpu"

    def to(self, device: object) -> "Movable":
        moved = Movable()
        moved.where = str(device)
        return moved


def test_every_tensor_is_moved_and_every_container_keeps_its_type() -> None:
    """Feature rows S17, S53 and S55: meta stands for any other device."""
    data = Pair([torch.ones(2), (torch.ones(1),)], UserDict(a=torch.ones(3), b={"c": torch.ones(1)}))
    moved = send_to_device(data, "meta")
    assert (type(moved), type(moved.first), type(moved.first[1]), type(moved.second)) == (Pair, list, tuple, UserDict)
    tensors = [moved.first[0], moved.first[1][0], moved.second["a"], moved.second["b"]["c"]]
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 4
    assert data.second["a"].device.type == "cpu"


def test_what_is_no_tensor_passes_through() -> None:
    """Reference 2.3."""
    moved = send_to_device({"tensor": torch.ones(1), "text": "str", "none": None, "n": 3}, torch.device("meta"))
    assert moved["tensor"].device.type == "meta"
    assert (moved["text"], moved["none"], moved["n"]) == ("str", None, 3)


def test_whatever_has_a_to_is_moved() -> None:
    assert send_to_device([Movable()], "meta")[0].where == "meta"


class Sentences(UserDict[str, torch.Tensor]):
    """Moves its entries itself, as tokenised text of transformers."""

    def to(self, device: Any, *, non_blocking: bool = False) -> "Sentences":
        return Sentences({key: entry.to(device, non_blocking=non_blocking) for key, entry in self.items()})


@pytest.mark.parametrize(("non_blocking", "waits"), [(True, ""), (False, ", the host waits")])
def test_objects_that_move_themselves_do_not_let_the_host_wait_either(non_blocking: bool, waits: str) -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1)])
    with RecordingDevice().installed() as gpu:
        moved = send_to_device([Sentences(ids=torch.ones(2)), packed, Movable()], "cuda:0", non_blocking=non_blocking)
    assert moved[2].where == "cuda:0"
    assert gpu.calls == [f"copy in on current stream: 8 bytes, pageable{waits}"] * 2


@pytest.mark.parametrize("keys", ["skip", ["skip"], ("skip", "other"), iter(["skip"])])
def test_skipped_keys_stay_where_they_are_at_every_depth(keys: Any) -> None:
    data = {"skip": torch.ones(1), "go": torch.ones(1), "inner": [{"skip": [torch.ones(1)], "go": torch.ones(1)}]}
    moved = send_to_device(data, "meta", skip_keys=keys)
    assert moved["skip"] is data["skip"]
    assert moved["go"].device.type == "meta"
    assert moved["inner"][0]["skip"][0].device.type == "cpu"
    assert moved["inner"][0]["go"].device.type == "meta"


def test_tensors_arrive_whole(device: torch.device) -> None:
    sent = torch.arange(4.0)
    arrived = send_to_device((sent,), device, non_blocking=True)[0]
    assert arrived.device.type == device.type
    assert torch.equal(arrived.cpu(), sent)


def test_what_moves_by_itself_is_asked_before_what_it_contains() -> None:
    """S53: a PackedSequence is a tuple, and some of it has to stay on the CPU."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    moved = send_to_device({"x": packed}, "meta")["x"]
    assert moved.data.device.type == "meta"
    assert moved.batch_sizes.device.type == "cpu"
