"""What a server of forks has loaded lies where forks cost little."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from accel_testing import MakePool

LOADED = """
import gc
from accel_testing.cheap_forks import prepare_forks

loaded = [str(number) * 4 for number in range(600_000)]
prepare_forks()
print(gc.get_freeze_count())
with open("/proc/self/smaps_rollup") as lines:
    print(*(line.split()[1] for line in lines if line.startswith("AnonHugePages")))
"""


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs Linux with huge pages")
def test_what_is_loaded_lies_in_huge_pages_that_are_not_collected() -> None:
    code = LOADED.strip()
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    frozen, huge_kib = map(int, printed.split())
    assert frozen > 0
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 1):
        assert huge_kib >= 10_000


def frozen() -> int:
    return gc.get_freeze_count()


def test_ranks_are_forked_from_what_was_prepared_last(world: MakePool) -> None:
    """Whatever was preloaded before: it is frozen in each rank."""
    assert world(1, join=False).run(frozen)[0] > 100_000
