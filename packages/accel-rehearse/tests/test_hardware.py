"""Devices by name, and by numbers."""

import pytest
from accel_launch.cli.options import OPTIONS
from accel_rehearse.command import COMMAND, MEASURED
from accel_rehearse.durations import step_seconds
from accel_rehearse.hardware import hardware_of, read_number, read_rates


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80GB", 80 * 10**9),
        ("80 GB", 80 * 10**9),
        (".5GB", 5 * 10**8),
        ("1.5 kB", 1500),
        ("450GB/s", 450 * 10**9),
        ("990e12", 990 * 10**12),
        ("9.9e+14", 990 * 10**12),
        ("512", 512),
        ("much", None),
        (".", None),
        ("8080 G G", None),
    ],
)
def test_numbers_with_units_are_read(text: str, number: int | None) -> None:
    assert read_number(text) == number


@pytest.mark.parametrize(
    "option", ["--submit", "--submit_options", "--submit_file", "--kind", "--explain", "--dry_run", "--no_python"]
)
def test_options_that_would_do_nothing_are_none_of_a_rehearsal(option: str) -> None:
    assert option in {flag for one in OPTIONS for flag in one.opts}
    assert option not in {flag for one in COMMAND.params for flag in one.opts}


def test_numbers_replace_those_of_a_known_device() -> None:
    hardware = hardware_of("h100", read_rates("100GB/s,10GB/s"), memory=read_number("40GB"))
    assert (hardware.memory, hardware.within, hardware.between) == (40 * 10**9, 100 * 10**9, 10 * 10**9)
    assert (hardware.flops, hardware.tf32, hardware.float32) == (990e12, 495e12, 67e12)
    own = hardware_of("h100", flops=10**12)
    assert (own.flops, own.tf32, own.float32, own.float64) == (1e12,) * 4
    assert read_rates("100GB/s,10GB/s,1GB/s") is None


def test_a_step_is_bound_by_what_takes_longer() -> None:
    sent = {"name": "all_reduce", "bytes": 10**9, "group_size": 4, "machines": 1}
    said = {"flops_by_precision": {"float32": 10**12}, "exchanges": [sent]}
    hardware = hardware_of(None, read_rates("1GB/s,1MB/s"), flops=10**12)
    inside = step_seconds(said, hardware, None)
    assert "1.5 s of exchange" in inside["assumed"]
    assert inside["bound"] == "compute"
    assert inside["low"] == pytest.approx(1 / 0.6)
    assert inside["high"] == pytest.approx(4 + 1.5)
    assert step_seconds({**said, "exchanges": [{**sent, "machines": 2}]}, hardware, None)["bound"] == "exchange"
    assert step_seconds(said, hardware_of(), None) == {}


def test_operations_take_the_time_of_their_precision() -> None:
    computed = {"bfloat16": 990 * 10**12, "float32": 67 * 10**12, "tf32": 495 * 10**12}
    step = step_seconds({"flops_by_precision": computed, "exchanges": []}, hardware_of("h100"), None)
    assert step["low"] == pytest.approx(3 / 0.6)
    assert "990e12/s in bfloat16, 67e12/s in float32, 495e12/s in tf32" in step["assumed"]


def test_a_measured_step_is_that_of_a_device_without_others() -> None:
    said = {
        "flops_by_precision": {"float32": 1},
        "exchanges": [{"name": "all_gather", "bytes": 10**9, "group_size": 64, "machines": 8}],
    }
    hardware = hardware_of(None, read_rates("2GB/s,1GB/s"))
    for text in ("2", "2s", "2s@1"):
        step = step_seconds(said, hardware, MEASURED.fullmatch(text))
        assert (step["low"], step["high"]) == pytest.approx((2, 2 + 63 / 64))
    assert MEASURED.fullmatch("2s@8") is None
