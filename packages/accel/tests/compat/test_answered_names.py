"""What scripts for Accelerate could import and read when this list was made, they still can."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from accel import Accelerator

ANSWERED = tomllib.loads(Path(__file__).with_name("answered_names.toml").read_text())
MODULES = {name: words.split() for name, words in ANSWERED["modules"].items()}
MODULES |= {f"accel.utils.{name}": MODULES["accel.utils"] for name in ANSWERED["also_utils"].split()}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_the_names_that_it_had(module: str) -> None:
    found = import_module(module)
    assert [name for name in MODULES[module] if not hasattr(found, name)] == []


def test_an_accelerator_has_the_attributes_that_it_had() -> None:
    accelerator = Accelerator(cpu=True)
    known = dir(accelerator)  # a few of them raise here: they need shards
    lacking = [name for name in ANSWERED["accelerator"].split() if name not in known and not hasattr(accelerator, name)]
    assert lacking == []
