"""Names of Accelerate: where they are, and what is said of those that are not here."""

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import torch
from accel_names.lazy_names import table

KNOWN = table()
EVERY = [*KNOWN.homes, *KNOWN.instead]


@pytest.mark.parametrize("name", sorted([*KNOWN.homes, *KNOWN.also]))
def test_a_name_that_is_said_to_be_here_is_here(name: str) -> None:
    """S175."""
    assert getattr(import_module("accel.utils"), name) is not None
    assert name in dir(import_module("accel.utils"))


def test_layers_for_float8_are_chosen_by_their_size_and_name() -> None:
    chosen = import_module("accel.utils").filter_first_and_last_linear_layers
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    assert [chosen(model, name) for name in ("0", "1", "2")] == [False, True, False]
    assert not chosen(torch.nn.Linear(16, 8), "1")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MegatronLMPlugin", "there is no Megatron-LM here; divide layers by"),
        ("prepare_pippy", "torch.distributed.pipelining"),
        ("get_parameters_from_modules", "FullyShardedDataParallelPlugin(ignored_modules=...) takes"),
        ("set_sed", "do you mean set_seed?"),
        ("zzzzzz", "not known of Accelerate"),
    ],
)
def test_a_name_that_is_not_here_says_what_to_do(name: str, words: str) -> None:
    """S175."""
    utils = import_module("accel.utils")
    with pytest.raises(AttributeError, match=f"accel.utils.{name} is not in accel") as refusal:
        getattr(utils, name)
    assert words in str(refusal.value)


def test_the_import_of_a_name_that_is_not_here_is_an_import_error() -> None:
    with pytest.raises(ImportError):
        from accel.utils import nothing_of_this_name  # noqa: F401


def test_star_imports_bring_what_the_door_has() -> None:
    space: dict[str, Any] = {}
    exec("from accel.launchers import *\nfrom accel.utils.versions import *", space)
    assert {"notebook_launcher", "is_torch_version"} <= set(space)


def test_doors_bring_no_torch() -> None:
    code = "import sys, accel.utils; accel.utils.MODEL_NAME; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_paths_of_scripts_hold() -> None:
    """S175: submodules of `utils`."""
    for path in ("operations", "other", "imports", "versions", "memory", "modeling", "dataclasses", "random"):
        assert import_module(f"accel.utils.{path}").set_seed is import_module("accel.utils").set_seed


def test_libraries_and_devices_are_looked_for() -> None:
    utils = import_module("accel.utils")
    assert utils.is_pytest_available()
    assert not utils.is_lomo_available()
    assert not utils.is_mlu_available(), "torch knows no such device"
    assert utils.is_cuda_available() == torch.cuda.is_available()
    assert utils.is_bf16_available()
    assert utils.is_torch_version(">=", "2.9")
    assert not utils.is_torch_version("<", "2.9")
    assert utils.compare_versions("torch", "!=", "1.0.0")
    with pytest.raises(ValueError, match="operation='~='"):
        utils.is_torch_version("~=", "2")


def test_a_function_that_needs_a_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = import_module("accel.utils")

    @utils.torchao_required  # type: ignore[untyped-decorator]
    def convert() -> int:
        return 3

    monkeypatch.setattr("accel_names.availability.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="convert needs torchao"):
        convert()
