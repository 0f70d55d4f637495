import os
import sys
from types import SimpleNamespace

import pytest
import torch
from accel_comm import GroupOptions
from accel_state import CannotRun, DistributedType, PartialState, RunRequest, acquire, release
from accel_state.devices import choose
from accel_state.devices.cpu import Cpu
from accel_state.devices.torch_accelerator import TorchAccelerator
from accel_testing import MakePool


def test_the_cpu_is_chosen_when_it_is_asked_for() -> None:
    """Feature row S22."""
    device = choose(cpu=True)
    assert isinstance(device, Cpu)
    assert device.group_backend == "gloo"
    assert [device.place(rank) for rank in (0, 3)] == [torch.device("cpu")] * 2


@pytest.mark.parametrize(("found", "kind"), [(None, "cpu"), ("cuda", "cuda"), ("xpu", "xpu")])
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


def stand_in(monkeypatch: pytest.MonkeyPatch, kind: str, count: int, current: int = 0) -> list[int]:
    """torch as it is with so many accelerators of that kind: those that are made current."""
    made_current: list[int] = []
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available=False: torch.device(kind))
    monkeypatch.setattr("torch.accelerator.device_count", lambda: count)
    monkeypatch.setattr("torch.accelerator.current_device_index", lambda: current)
    monkeypatch.setattr("torch.accelerator.set_device_index", made_current.append)
    return made_current


@pytest.mark.parametrize(("kind", "backend"), [("cuda", "nccl"), ("xpu", "xccl")])
def test_each_process_gets_the_accelerator_of_its_local_rank(
    kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feature row S4."""
    made_current = stand_in(monkeypatch, kind, 2)
    device = choose(cpu=False)
    assert isinstance(device, TorchAccelerator)
    assert device.place(1) == torch.device(kind, 1)
    assert made_current == [1]
    assert device.group_backend == f"cpu:gloo,{kind}:{backend}"


def test_a_process_that_is_shown_one_accelerator_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under srun --gpus-per-task=1, whatever the rank on the machine."""
    stand_in(monkeypatch, "cuda", 1)
    assert TorchAccelerator().place(3).index == 0


def test_a_process_alone_keeps_the_accelerator_that_its_script_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after torch.cuda.set_device(1)."""
    made_current = stand_in(monkeypatch, "cuda", 2, current=1)
    try:
        assert acquire(RunRequest()).placed_on == torch.device("cuda", 1)
    finally:
        release()
    assert made_current == [1]


@pytest.mark.parametrize(("kind", "name"), [("cuda", "GPU 2"), ("xpu", "xpu:2")])
def test_more_processes_than_accelerators_are_refused(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, kind, 2)
    with pytest.raises(CannotRun) as refused:
        TorchAccelerator().place(2)
    assert str(refused.value) == (
        f"process 2 of this machine needs {name}:"
        " torch sees 2; start at most 2 processes a machine, or ask for the CPU (cpu=True)"
    )
    assert refused.value.what == f"process 2 of this machine needs {name}"


def test_no_accelerator_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: None)
    with pytest.raises(CannotRun, match=r"an accelerator: torch finds none; ask for the CPU \(cpu=True\)"):
        TorchAccelerator()


def test_an_accelerator_is_known_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "cuda", 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(uuid=f"of {device}"))
    assert TorchAccelerator().hardware_id(torch.device("cuda", 1)) == "of cuda:1"
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace())
    assert TorchAccelerator().hardware_id(torch.device("cuda", 1)) is None
    assert Cpu().hardware_id(torch.device("cpu")) is None


def on_gpus(uuids: list[str], visible: list[str], backend: str | None) -> str:
    """What a rank hears that is given this GPU, the only one that it sees; tensors stay on the CPU."""
    rank = int(os.environ["RANK"])
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[rank]
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, "cuda", 1)
        patch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(uuid=uuids[rank]))
        patch.setattr(TorchAccelerator, "group_backend", "gloo")
        try:
            run = acquire(RunRequest(group=GroupOptions(backend=backend)))
        except CannotRun as refused:
            return str(refused)
        found = f"{run.placed_on} {run.transport.all_gather_objects(run.topology.rank)}"
        release()
        return found


def test_processes_that_see_one_gpu_only_do_not_share_it_unasked(world: MakePool) -> None:
    """As torchrun starts them: nothing would say why each is half as fast, or what NCCL does not like."""
    shared = world(2).run(on_gpus, ["GPU-1", "GPU-1"], ["0", "0"], None)
    assert shared == [shared[0]] * 2
    assert shared[0].startswith("each process was to have an accelerator of its own: ranks 0, 1 see only GPU-1; start ")
    for word in ("cpu=True", "CUDA_VISIBLE_DEVICES", "InitProcessGroupKwargs(backend='gloo')"):
        assert word in shared[0]


@pytest.mark.parametrize(
    ("uuids", "visible", "backend"),
    [
        (["GPU-1", "GPU-2"], ["0", "0"], None),
        (["GPU-1", "GPU-1"], ["MIG-1", "MIG-2"], None),
        (["GPU-1", "GPU-1"], ["0", "0"], "gloo"),
    ],
    ids=["srun --gpus-per-task=1", "slices of one GPU", "on purpose"],
)
def test_processes_with_a_gpu_each_or_on_purpose_on_one_begin(
    uuids: list[str], visible: list[str], backend: str | None, world: MakePool
) -> None:
    assert world(2).run(on_gpus, uuids, visible, backend) == ["cuda:0 [0, 1]"] * 2


def test_the_generator_of_a_device_is_saved_and_put_back(device: torch.device) -> None:
    """With --device=cuda this is the GPU's own generator."""
    ours = choose(cpu=device.type == "cpu", environ=os.environ)
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


def stand_in_for_xla(monkeypatch: pytest.MonkeyPatch, world_size: int) -> list[str]:
    """torch_xla, which does not import beside this torch, with a runtime of so many processes: what is called."""
    needs_no_other_accelerator()
    called: list[str] = []
    runtime = SimpleNamespace(world_size=lambda: world_size)
    library = SimpleNamespace(
        device=lambda: torch.device("xla", 0), sync=lambda: called.append("sync"), runtime=runtime
    )
    pjrt = SimpleNamespace(initialize_multiprocess=lambda *given: called.append(f"process {given[0]} of {given[1]}"))
    monkeypatch.setitem(sys.modules, "torch_xla", library)
    monkeypatch.setitem(sys.modules, "torch_xla._internal", SimpleNamespace(pjrt=pjrt))
    monkeypatch.setattr("accel_state.devices.xla.find_spec", lambda name: library)
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    return called


@pytest.mark.parametrize(
    ("environ", "found", "words"),
    [
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            1,
            r"XLA in a job of 2 \(launcher: torchrun\): on rank 1 the runtime of torch_xla connects 1, .*; start one ",
        ),
        ({}, 4, r"XLA in a job of 1 \(launcher: local\): on rank 0 the runtime of torch_xla connects 4, "),
    ],
    ids=["torchrun", "torch_xla.launch"],
)
def test_a_runtime_with_a_world_of_its_own_is_refused_before_any_exchange(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], found: int, words: str
) -> None:
    """S4: each would train alone, in silence."""
    called = stand_in_for_xla(monkeypatch, found)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CannotRun, match=words):
        acquire(RunRequest())
    assert called == (["process 1 of 2"] if environ else []), "nothing is placed before"


def test_a_tpu_is_one_process_on_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4, S26: by the environment alone."""
    steps = stand_in_for_xla(monkeypatch, 1)
    state = PartialState()
    try:
        assert state.distributed_type == DistributedType.TPU
        assert (state.num_processes, state.process_index, state.local_process_index) == (1, 0, 0)
        assert state.device == torch.device("xla", 0)
        boundary = state.run.device.step_boundary
        assert boundary is not None
        boundary()
        assert steps == ["sync"]
    finally:
        release()
    assert choose(cpu=True).step_boundary is None
