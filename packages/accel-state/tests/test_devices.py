import sys
from types import SimpleNamespace

import pytest
import torch
from accel_state import CannotRun, DistributedType, PartialState, release
from accel_state.devices import DEVICES, choose
from accel_state.devices.cpu import Cpu
from accel_state.devices.cuda import Cuda
from accel_state.devices.generic import Generic


def test_the_cpu_is_chosen_when_it_is_asked_for() -> None:
    """Feature row S22."""
    device = choose(cpu=True)
    assert isinstance(device, Cpu)
    assert device.group_backend == "gloo"
    assert [device.place(rank) for rank in (0, 3)] == [torch.device("cpu")] * 2


@pytest.mark.parametrize(("found", "kind"), [(None, "cpu"), ("cuda", "cuda"), ("xpu", "generic")])
def test_the_accelerator_that_torch_finds_is_chosen(
    monkeypatch: pytest.MonkeyPatch, found: str | None, kind: str
) -> None:
    """Feature row S4: `cpu=True` wins over all of them (S22)."""
    accelerator = None if found is None else torch.device(found)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available=False: accelerator)
    assert choose(cpu=False).kind == kind
    assert choose(cpu=True).kind == "cpu"


def test_the_cpu_generator_is_saved_and_put_back() -> None:
    device = choose(cpu=True)
    state = device.rng_state()
    first = torch.rand(3)
    device.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)
    device.release_memory()


def test_each_process_gets_the_gpu_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    made_current: list[int] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", made_current.append)
    assert Cuda().place(1) == torch.device("cuda", 1)
    assert made_current == [1]
    assert Cuda().group_backend == "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize("kind", [Cuda, Generic])
def test_a_process_that_is_shown_one_accelerator_takes_it(
    monkeypatch: pytest.MonkeyPatch, kind: type[Cuda] | type[Generic]
) -> None:
    """As under srun --gpus-per-task=1, whatever the rank on the machine."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.set_device", lambda index: None)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 1)
    monkeypatch.setattr("torch.accelerator.set_device_index", lambda index: None)
    assert kind().place(3).index == 0


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(CannotRun) as refused:
        Cuda().place(2)
    assert str(refused.value) == (
        "process 2 of this machine needs GPU 2:"
        " torch sees 2; start at most 2 processes a machine, or ask for the CPU (cpu=True)"
    )
    assert refused.value.what == "process 2 of this machine needs GPU 2"


def test_any_other_accelerator_is_served_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feature row S4."""
    made_current: list[int] = []
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    monkeypatch.setattr("torch.accelerator.set_device_index", made_current.append)
    assert Generic().place(1) == torch.device("xpu", 1)
    assert made_current == [1]
    assert Generic().group_backend == "cpu:gloo,xpu:xccl"
    with pytest.raises(CannotRun, match=r"process 2 of this machine needs xpu:2: torch finds 2 here; start at most 2"):
        Generic().place(2)


def test_no_accelerator_at_all_is_refused_by_the_generic_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: None)
    with pytest.raises(CannotRun, match=r"an accelerator: torch finds none; ask for the CPU \(cpu=True\)"):
        Generic().rng_state()


def test_the_generator_of_a_device_is_saved_and_put_back(device: torch.device) -> None:
    """With --device=cuda this is the GPU's own generator."""
    ours = DEVICES.load(device.type)()
    state = ours.rng_state()
    first = torch.rand(3, device=device)
    ours.set_rng_state(state)
    assert torch.equal(torch.rand(3, device=device), first)
    ours.release_memory()


def needs_no_other_accelerator() -> None:
    if torch.accelerator.is_available():
        pytest.skip("torch has an accelerator, which comes first")


def test_xla_without_its_library_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: a TPU is noticed, not taken for a CPU."""
    needs_no_other_accelerator()
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    monkeypatch.setattr("accel_state.devices.xla.find_spec", lambda name: None)
    with pytest.raises(CannotRun, match=r"asks for XLA: torch_xla is not installed; install it, unset PJRT_DEVICE"):
        choose(cpu=False, environ={"PJRT_DEVICE": "TPU"})
    assert choose(cpu=True, environ={"PJRT_DEVICE": "TPU"}).kind == "cpu"


def test_a_tpu_is_one_process_on_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4, S26: by the environment alone; torch_xla is a stand-in here, as it does not import beside this torch."""
    needs_no_other_accelerator()
    steps: list[str] = []
    library = SimpleNamespace(device=lambda: torch.device("xla", 0), sync=lambda: steps.append("sync"))
    monkeypatch.setitem(sys.modules, "torch_xla", library)
    monkeypatch.setattr("accel_state.devices.xla.find_spec", lambda name: library)
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    state = PartialState()
    try:
        assert state.distributed_type == DistributedType.TPU
        assert (state.num_processes, state.process_index, state.local_process_index) == (1, 0, 0)
        assert state.device == torch.device("xla", 0)
        boundary = state.run.device.step_boundary
        assert boundary is not None
        boundary()
        assert steps == ["sync"]
        with pytest.raises(CannotRun, match="several processes on XLA are not there yet"):
            state.run.device.group_backend  # noqa: B018
    finally:
        release()
    assert choose(cpu=True).step_boundary is None
