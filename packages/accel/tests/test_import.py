"""What an import costs and brings."""

import inspect
import subprocess
import sys
from importlib import import_module

import accel
import pytest


def test_importing_the_package_leaves_torch_out() -> None:
    """S15: the names are there at once, torch comes with their first use."""
    code = "import accel, sys; assert 'torch' not in sys.modules; accel.Accelerator; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_accelerator_brings_no_names_of_accelerate() -> None:
    code = "import sys, accel; accel.Accelerator(cpu=True); assert not [m for m in sys.modules if 'accel_names' in m]"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", accel.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    """S7, S15: the API and the launcher's functions come from the top."""
    assert getattr(accel, name) is not None
    assert name in dir(accel)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"accel\.Accelerater is not in accel: do you mean Accelerator"):
        accel.Accelerater  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("accel.state", "AcceleratorState"),
        ("accel.state", "PartialState"),
        ("accel.optimizer", "AcceleratedOptimizer"),
        ("accel.scheduler", "AcceleratedScheduler"),
        ("accel.data_loader", "DataLoaderShard"),
        ("accel.data_loader", "prepare_data_loader"),
        ("accel.utils", "load_checkpoint_in_model"),
        ("accel.utils", "set_seed"),
        ("accel.utils", "synchronize_rng_states"),
    ],
)
def test_names_are_where_scripts_import_them_from(module: str, name: str) -> None:
    """S40, S42, S91, S120, S122: the paths of the documents."""
    assert getattr(import_module(module), name) is not None


SETUPS = {"rank", "world_size", "backend", "device", "num_processes", "local_rank", "distributed_type"}


def test_no_method_asks_for_the_setup() -> None:
    """S6: only one API."""
    for name, method in inspect.getmembers(accel.Accelerator, inspect.isfunction):
        if name.startswith("_"):
            continue
        needed = {one.name for one in inspect.signature(method).parameters.values() if one.default is one.empty}
        assert not needed & SETUPS, f"{name} cannot be called without {needed & SETUPS}"
    assert all(one.default is not one.empty for one in inspect.signature(accel.Accelerator).parameters.values())
