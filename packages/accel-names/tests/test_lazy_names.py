"""The table of Accelerate's names, which accel looks up."""

from importlib import import_module
from pathlib import Path

import pytest
from accel_names.lazy_names import door, find, table

KNOWN = table()
EVERY = [*KNOWN.homes, *KNOWN.instead]
HOMES = {**KNOWN.homes, **KNOWN.also}
OURS = sorted(name for name, home in HOMES.items() if home.startswith("accel_names."))


def test_every_public_name_of_accelerate_is_accounted_for() -> None:
    """S175: 279 names of 1.15, each once."""
    assert len(EVERY) == len(set(EVERY)) == 279
    assert set(KNOWN.different) <= set(KNOWN.homes)
    assert set(EVERY) >= KNOWN.vendors


def test_nine_of_ten_names_are_the_same() -> None:
    """S175: of those that are not about the product of one vendor."""
    general = set(EVERY) - KNOWN.vendors
    same = general & set(KNOWN.homes) - set(KNOWN.different)
    assert len(same) >= 0.9 * len(general), sorted(general - same)


def test_a_door_has_no_names_of_the_interpreter() -> None:
    """Tools ask modules for `__wrapped__` and the like, and want no sentence."""
    get, _ = door("accel.somewhere", "set_seed")
    with pytest.raises(AttributeError, match="has no attribute '__wrapped__'"):
        get("__wrapped__")


def test_the_table_is_in_the_wheel() -> None:
    assert Path(import_module("accel_names.lazy_names").TABLE).suffix == ".toml"


@pytest.mark.parametrize("name", OURS)
def test_a_module_has_the_names_that_the_table_says(name: str) -> None:
    assert find(name, "accel_names") is not None
