from __future__ import annotations

import random

import pytest
import torch

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess("-p", "accel_testing", "--import-mode=importlib", *args)


def test_each_test_starts_with_the_same_random_numbers(pytester: pytest.Pytester) -> None:
    random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), torch.get_rng_state()
    result = run(
        pytester,
        """
        import random, pytest, torch
        drawn = set()
        @pytest.mark.parametrize("time", range(3))
        def test_draws(time):
            drawn.add((random.random(), float(torch.rand(()))))
            assert len(drawn) == 1
        """,
    )
    result.assert_outcomes(passed=3)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("mode", ["importlib", "prepend"])
def test_a_test_file_that_no_worker_can_import_runs_in_a_world(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(
        **{
            "deep/test_far.py": """
            import enum
            import torch.distributed as dist
            class Color(enum.Enum):
                RED = 1
            def paint(color):
                assert color is Color.RED
                return color, dist.get_rank()
            def test_paint(world):
                assert world(2).run(paint, Color.RED) == [(Color.RED, 0), (Color.RED, 1)]
            """
        }
    )
    result = pytester.runpytest_inprocess("-p", "accel_testing", f"--import-mode={mode}")
    result.assert_outcomes(passed=1)


def test_a_failing_rank_reads_well_in_the_report(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def broken():
            raise OSError("the disk is on fire")
        def test_it(world):
            world(2).run(broken)
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *broken on 2 ranks: rank 0, 1 failed", "E *--- rank 1 raised OSError ---"])
    result.stdout.no_fnmatch_line("*_sorted_out*")
