"""A dispatched model computes what the whole one does."""

import copy
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_big import (
    cpu_offload,
    disk_offload,
    dispatch_model,
    load_checkpoint_and_dispatch,
    offload_state_dict,
    remove_hook_from_submodules,
)
from accel_big import (
    look_ahead as look_ahead_module,
)
from accel_big.look_ahead import LookAhead
from accel_big.offload.unit import OffloadedUnit, Slot
from accel_checkpoint import CheckpointError, save_weights
from accel_state.errors import CannotRun
from accel_testing import stretched
from torch import nn


class Net(nn.Module):
    """Has tied weights, a buffer, and blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(6, 6, bias=False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)) for _ in range(3))
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 6, bias=False)
        self.out.weight = self.inp.weight

    def forward(self, x: torch.Tensor, *, factor: float = 1) -> torch.Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = block(x) * factor
        out: torch.Tensor = self.out(self.norm(x))
        return out


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
MIXED = {"inp": "disk", "out": "disk", "blocks.0": "cpu", "blocks.1": "disk", "blocks.2": "disk", "norm": "cpu"}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def empty() -> Net:
    with torch.device("meta"):
        return Net().eval()


@pytest.mark.parametrize("device_map", [{"": "cpu"}, {"": "disk"}, MIXED])
@pytest.mark.parametrize("safe", [True, False])
def test_it_computes_the_same_and_has_the_same_state(
    net: Net, tmp_path: Path, device_map: dict[str, str], safe: bool
) -> None:
    """S143, S144: the state dict has the numbers, and tied weights share theirs."""
    save_weights(net.state_dict(), tmp_path / "c", max_shard_size=200, safe_serialization=safe)
    files = set((tmp_path / "c").iterdir())
    model = load_checkpoint_and_dispatch(empty(), tmp_path / "c", device_map, offload_folder=tmp_path / "o")
    assert model.hf_device_map == device_map
    for _ in range(3):
        assert torch.equal(model(X, factor=2), net(X, factor=2))
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())
    assert state["inp.weight"].data_ptr() == state["out.weight"].data_ptr()
    save_weights(state, tmp_path / "again")
    assert (tmp_path / "o").exists() == (not safe and "disk" in device_map.values()), "nothing is written twice"
    assert set((tmp_path / "c").iterdir()) == files
    remove_hook_from_submodules(model)
    assert not any(tensor.is_meta for tensor in model.parameters())
    assert model.get_parameter("out.weight") is model.get_parameter("inp.weight")
    assert torch.equal(model(X), net(X))


def test_a_model_with_numbers_is_written_once(net: Net, tmp_path: Path) -> None:
    """S143."""
    model = disk_offload(copy.deepcopy(net), tmp_path / "o")
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["index.json", "model.safetensors"]
    assert all(parameter.is_meta for parameter in model.parameters())
    assert torch.equal(model(X), net(X))
    again = disk_offload(copy.deepcopy(net), tmp_path / "o")
    assert torch.equal(again(X), net(X))
    assert torch.equal(model(X), net(X)), "files that are replaced are still held"
    save_weights(net.state_dict(), tmp_path / "checkpoint")
    with pytest.raises(CannotRun, match="has weights of its own, which would be replaced"):
        disk_offload(copy.deepcopy(net), tmp_path / "checkpoint")
    assert torch.equal(dispatch_model(empty_with(net), {"": "disk"}, offload_dir=tmp_path / "checkpoint")(X), net(X))
    model = cpu_offload(copy.deepcopy(net))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert torch.equal(model(X), net(X))


def empty_with(net: Net) -> Net:
    """On the meta device but for buffers."""
    model = empty()
    model.norm = copy.deepcopy(net.norm)
    model.norm.to_empty(device="meta")
    for name, buffer in net.norm.named_buffers():
        setattr(model.norm, name, buffer)
    return model


def test_what_cannot_be_dispatched_is_told(net: Net, tmp_path: Path) -> None:
    """S145."""
    with pytest.raises(CannotRun, match="give the folder they are in, or go to"):
        dispatch_model(net, {"": "disk"})
    with pytest.raises(CannotRun, match=r"inp.weight on cpu, out.weight on disk"):
        dispatch_model(net, {"": "cpu", "out": "disk"}, offload_dir=tmp_path)
    with pytest.raises(CheckpointError, match=r"on the meta device, without numbers: inp.weight"):
        dispatch_model(empty(), {"": "cpu"})
    offload_state_dict(tmp_path / "o", {"inp.weight": torch.zeros(2, 2), "norm.weight": torch.zeros(6)})
    with pytest.raises(CheckpointError) as caught:
        dispatch_model(empty(), {"": "disk"}, offload_dir=tmp_path / "o")
    assert "inp.weight: [2, 2] in" in str(caught.value)
    assert "norm.bias is not in the files" in str(caught.value)
    with pytest.raises(CannotRun, match="expected a mapping, or one of auto"):
        load_checkpoint_and_dispatch(net, tmp_path / "o", "fastest")
    assert not any(parameter.is_meta for parameter in net.parameters())
    model = cpu_offload(net)
    with pytest.raises(CannotRun, match="has hooks already"):
        cpu_offload(model)


def test_what_would_lose_weights_is_refused_in_words(net: Net, tmp_path: Path) -> None:
    """S145: compiling, moving and filling a model whose weights are elsewhere."""
    model = disk_offload(copy.deepcopy(net), tmp_path)
    for misuse in (
        lambda: torch.compile(model, backend="eager")(X),
        lambda: model.compile(),
        lambda: model.to(torch.float16),
        lambda: model.half(),
        lambda: model.load_state_dict(net.state_dict()),
    ):
        with pytest.raises(CannotRun, match=r"of a dispatched model: it has offloaded weights"):
            misuse()
    remove_hook_from_submodules(model)
    model.load_state_dict(net.state_dict())
    assert model.half().get_parameter("inp.weight").dtype == torch.float16


def test_tensors_of_other_classes_are_left_alone(net: Net, tmp_path: Path) -> None:
    """S143: quantised ones keep more than numbers."""
    from torch.testing._internal.two_tensor import TwoTensor

    odd: Any = nn.Parameter(TwoTensor(torch.eye(6), torch.eye(6)), requires_grad=False)  # type: ignore[no-untyped-call]
    net.get_submodule("blocks.1.0").weight = odd
    model = disk_offload(net, tmp_path)
    assert model.get_submodule("blocks.1.0").weight is odd
    assert [name for name, parameter in model.named_parameters() if not parameter.is_meta] == ["blocks.1.0.weight"]


def test_a_model_runs_when_python_ends_and_its_reader_takes_no_more_work(net: Net, tmp_path: Path) -> None:
    """In a thread that outlives the main one, and in an exit handler: Python has ended all executors before."""
    expected = net(X)
    model = disk_offload(net, tmp_path, execution_device=torch.device("cpu"))
    for look_ahead in look_ahead_module._ALL:
        look_ahead._room_bytes = 0  # else it keeps what it has read
    model(X)
    for look_ahead in look_ahead_module._ALL:
        look_ahead._reader.shutdown()
    for _ in range(3):
        assert torch.equal(model(X), expected)


def test_threads_may_call_one_model(net: Net, tmp_path: Path) -> None:
    """S144."""
    model = disk_offload(copy.deepcopy(net), tmp_path)
    expected, wrong = net(X), []

    def call() -> None:
        for _ in range(30):
            with torch.no_grad():
                wrong.extend([] if torch.equal(model(X), expected) else [threading.get_ident()])

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_process_may_call_the_model(net: Net, tmp_path: Path) -> None:
    """S144: as workers of a loader; it has neither the thread nor the lock."""
    torch.set_num_threads(1)
    model = disk_offload(copy.deepcopy(net), tmp_path)
    with torch.no_grad():
        model(X)
        expected = model(X)

    def child() -> None:
        with torch.no_grad():
            os._exit(0 if all(torch.equal(model(X), expected) for _ in range(3)) else 3)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(stretched(60))
    assert process.exitcode == 0


def test_a_copy_of_the_model_is_its_own(net: Net, tmp_path: Path) -> None:
    model = disk_offload(copy.deepcopy(net), tmp_path)
    twin = copy.deepcopy(model)
    remove_hook_from_submodules(model)
    assert torch.equal(twin(X), net(X))
    assert all(parameter.is_meta for parameter in twin.parameters())
    remove_hook_from_submodules(twin)
    assert twin.get_parameter("out.weight") is twin.get_parameter("inp.weight")
    assert torch.equal(twin(X), net(X))


def test_gradients_reach_the_inputs_of_offloaded_layers(net: Net, tmp_path: Path) -> None:
    x = X.clone().requires_grad_()
    net(x).sum().backward()
    model = disk_offload(copy.deepcopy(net), tmp_path)
    y = X.clone().requires_grad_()
    model(y).sum().backward()
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]


def unit(name: str, numbers: int) -> OffloadedUnit:
    owner = nn.Module()
    owner.register_parameter("weight", nn.Parameter(torch.ones(numbers)))
    weights = {name: torch.full((numbers,), 2.0)}
    return OffloadedUnit([Slot(owner, "weight", name)], weights, torch.device("cpu"))


def test_the_order_is_learned_and_what_is_read_ahead_is_bounded() -> None:
    """S144: after the first pass the next units are read, no more than the largest has."""
    look_ahead = LookAhead()
    units = [unit(name, numbers) for name, numbers in (("a", 30), ("b", 10), ("c", 10), ("d", 20))]
    for each in units:
        look_ahead.add(each)
    ahead: list[list[str]] = []
    for _ in range(3):
        for each in units:
            look_ahead.enter(each)
            assert each.slots[0].owner.get_parameter("weight")[0] == 2
            ahead.append([slot.key for waiting in look_ahead._ahead for slot in waiting.slots])
            assert sum(waiting.size for waiting in look_ahead._ahead) <= 120
            look_ahead.leave(each)
            assert each.slots[0].owner.get_parameter("weight").is_meta
    assert ahead[:4] == [[], [], [], []]
    assert ahead[8:] == [["b", "c"], ["c", "d"], ["d"], ["a"]]
    # another order: what was read for nothing is forgotten
    look_ahead.enter(units[3])
    assert not look_ahead._ahead
    look_ahead.leave(units[3])


class Stream:
    """Stands in for the stream of copies: what it sends is there at once."""

    def __init__(self, calls: list[str], key: Callable[[list[torch.Tensor]], str]) -> None:
        self.calls, self.key = calls, key

    def send(self, numbers: list[torch.Tensor]) -> tuple[list[torch.Tensor], None]:
        self.calls.append(f"send {self.key(numbers)}")
        return numbers, None

    def await_copy(self, copied: None) -> None:
        pass


def test_a_unit_is_sent_before_the_one_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy waits for what was asked for before it: sent later, copies and products would take turns."""
    units = [unit(name, 10) for name in "abcd"]
    sizes = {id(each.weights[each.slots[0].key]): each.slots[0].key for each in units}
    calls: list[str] = []
    monkeypatch.setattr(look_ahead_module, "_has_streams", lambda _: True)
    monkeypatch.setattr(look_ahead_module, "CopyStream", lambda _: Stream(calls, lambda read: sizes[id(read[0])]))
    look_ahead = LookAhead()
    for each in units:
        look_ahead.add(each)
    for _ in range(4):
        for each in units:
            look_ahead.enter(each)
            calls.append(f"run {each.slots[0].key}")
            for pending in look_ahead._ahead.values():
                pending.result()
            assert look_ahead._sent_bytes <= 40
            look_ahead.leave(each)
    assert calls[-8:] == ["send b", "run a", "send c", "run b", "send d", "run c", "send a", "run d"]


def test_weights_that_were_made_in_inference_mode_are_offloaded() -> None:
    with torch.inference_mode():
        model = nn.Linear(3, 3)
    x = torch.ones(3)
    expected = model(x)
    assert cpu_offload(model)(x).equal(expected)
