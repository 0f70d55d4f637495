"""Devices by name, and by numbers."""

import pytest
from accel_rehearse.durations import step_seconds
from accel_rehearse.hardware import hardware_of, read_number, read_rates


@pytest.mark.parametrize(
    ("text", "number"),
    [("80GB", 80 * 10**9), ("450GB/s", 450 * 10**9), ("990e12", 990 * 10**12), ("512", 512), ("much", None)],
)
def test_numbers_with_units_are_read(text: str, number: int | None) -> None:
    assert read_number(text) == number


def test_numbers_replace_those_of_a_known_device() -> None:
    hardware = hardware_of("h100", read_number("40GB"), None, read_rates("100GB/s,10GB/s"))
    assert (hardware.memory, hardware.within, hardware.between) == (40 * 10**9, 100 * 10**9, 10 * 10**9)
    assert hardware.flops == 990e12
    assert read_rates("100GB/s,10GB/s,1GB/s") is None


def test_a_step_is_bound_by_what_takes_longer() -> None:
    sent = {"name": "all_reduce", "bytes": 10**9, "group_size": 4, "ranks": [0, 1, 2, 3]}
    notes = {"flops": 10**12, "exchanges": [sent]}
    hardware = hardware_of(None, None, 10**12, "1GB/s,1MB/s")
    inside = step_seconds(notes, hardware, 4, None)
    assert inside["exchange"] == pytest.approx(1.5)
    assert inside["bound"] == "compute"
    assert inside["low"] == pytest.approx(1 / 0.6)
    assert inside["high"] == pytest.approx(4 + 1.5)
    assert step_seconds(notes, hardware, 2, None)["bound"] == "exchange"
    assert step_seconds(notes, hardware, 4, 0.4)["high"] == pytest.approx(1.9)
    assert step_seconds(notes, hardware_of(None, None, None, None), 4, None) == {}
