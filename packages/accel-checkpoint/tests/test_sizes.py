from fractions import Fraction

import pytest
from accel_checkpoint import size_in_bytes
from accel_checkpoint.weights.sizes import UNITS
from hypothesis import assume, given, settings
from hypothesis import strategies as st

QUICK = settings(derandomize=True, deadline=None)
BYTES_OF = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}


@pytest.mark.parametrize(
    ("size", "expected"),
    [(500, 500), ("500", 500), ("500B", 500), ("10GB", 10**10), ("1.5 kB", 1500), (" 2 gib ", 2**31), ("0.5KiB", 512)],
)
def test_sizes_are_read_as_people_write_them(size: int | str, expected: int) -> None:
    """Feature row S89."""
    assert size_in_bytes(size) == expected


@QUICK
@given(st.integers(1, 10**18), st.sampled_from(sorted(BYTES_OF)), st.sampled_from(["", " "]), st.booleans())
def test_every_whole_number_of_every_unit_is_exact(count: int, unit: str, space: str, lower: bool) -> None:
    written = f"{count}{space}{unit}"
    assert size_in_bytes(written.lower() if lower else written) == count * BYTES_OF[unit]


@QUICK
@given(st.integers(1, 10**15))
def test_a_number_means_bytes(count: int) -> None:
    assert size_in_bytes(count) == size_in_bytes(str(count)) == count


@QUICK
@given(st.integers(0, 999), st.integers(0, 999), st.sampled_from(["KB", "GB", "MiB"]))
def test_a_decimal_fraction_is_rounded_down_to_bytes(whole: int, thousandths: int, unit: str) -> None:
    exact = (whole + Fraction(thousandths, 1000)) * BYTES_OF[unit]
    assume(exact >= 1)
    assert size_in_bytes(f"{whole}.{thousandths:03d}{unit}") == exact // 1


@pytest.mark.parametrize("size", ["", "GB", "ten GB", "-1", -5, "1e3", "5 XB", "1,5GB", "1..5KB", True, None, "nan"])
def test_anything_else_is_refused_with_the_units_there_are(size: object) -> None:
    with pytest.raises(ValueError, match="expected a number of bytes, or a number and one of B, KB, MB, GB, TB, KIB"):
        size_in_bytes(size)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, "0GB", "0.4B", "0.0001KB"])
def test_less_than_a_byte_is_refused(size: int | str) -> None:
    with pytest.raises(ValueError, match=f"size {size!r}: expected at least one byte"):
        size_in_bytes(size)


def test_the_units_are_those_of_the_test() -> None:
    assert {unit.upper(): count for unit, count in BYTES_OF.items()} == UNITS
