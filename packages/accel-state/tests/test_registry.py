import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
from accel_state import Device, Registry, Topology, UnknownName, detect
from accel_state.devices import DEVICES
from accel_state.devices.cpu import Cpu
from accel_state.environments import ENVIRONMENTS

GROUP = "accel.devices"


@pytest.fixture
def abacus(monkeypatch: pytest.MonkeyPatch) -> type:
    """Another distribution's device, and a module that provides it."""

    class Abacus:
        kind = "abacus"

    module = ModuleType("third_party_abacus")
    vars(module)["DEVICE"] = Abacus
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = EntryPoint("abacus", "third_party_abacus:DEVICE", GROUP)
    monkeypatch.setattr("accel_state.registry.entry_points_of", lambda group: [entry] if group == GROUP else [])
    return Abacus


def test_the_files_of_the_folder_are_the_names() -> None:
    assert DEVICES.names() == ("cpu", "torch_accelerator", "xla")
    assert ENVIRONMENTS.names() == ("elastic", "mpi", "slurm")


@pytest.mark.parametrize("name", ["cpu", "torch_accelerator", "xla"])
def test_every_device_here_loads_under_the_name_of_its_file(name: str) -> None:
    device = DEVICES.load(name)
    assert issubclass(device, Device)
    assert device.__module__.endswith(f".{name}")


@pytest.mark.parametrize("name", ["elastic", "mpi", "slurm"])
def test_every_environment_here_loads_under_its_own_name(name: str) -> None:
    assert ENVIRONMENTS.load(name).__module__.endswith(f".{name}")


@pytest.mark.parametrize("name", ["gpu", "_base", "", "cpu.Cpu", "../cpu"])
def test_an_unknown_name_is_answered_with_the_names_there_are(name: str) -> None:
    with pytest.raises(UnknownName) as refused:
        DEVICES.load(name)
    assert str(refused.value) == f"no device named {name!r}; there are: cpu, torch_accelerator, xla"


def test_another_distribution_adds_a_name_through_its_entry_point(abacus: type) -> None:
    assert DEVICES.names() == ("abacus", "cpu", "torch_accelerator", "xla")
    assert DEVICES.load("abacus") is abacus
    assert DEVICES.load("cpu") is Cpu


def test_the_names_of_others_are_listed_in_the_error(abacus: type) -> None:
    with pytest.raises(UnknownName, match="there are: abacus, cpu, torch_accelerator, xla"):
        DEVICES.load("sundial")


def test_an_environment_of_another_distribution_is_asked_by_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kite:
        priority = 200

        @staticmethod
        def topology(environ: dict[str, str]) -> Topology | None:
            return Topology(launcher="kite") if "KITE" in environ else None

    module = ModuleType("third_party_kite")
    vars(module)["ENVIRONMENT"] = Kite
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = EntryPoint("kite", "third_party_kite:ENVIRONMENT", "accel.environments")
    monkeypatch.setattr("accel_state.registry.entry_points_of", lambda group: [entry])
    torchrun = {"RANK": "0", "WORLD_SIZE": "1"}
    assert detect(torchrun | {"KITE": "flies"}).launcher == "kite"
    assert detect(torchrun).launcher == "torchrun"


def test_a_folder_of_plug_ins_lists_files_without_importing_them() -> None:
    registry: Registry[object] = Registry("json", "no.such.group", "JSON")
    assert registry.names() == ("decoder", "encoder", "scanner", "tool")
    assert "json.tool" not in sys.modules
