"""What the suite tries, what a soak tries, and what a slice of a soak."""

import itertools
from collections.abc import Sequence

import pytest
from suite.soak import covering

pytest_plugins = ["pytester"]

GRID = """
    import pytest
    @pytest.mark.grid({strength})
    @pytest.mark.parametrize("a", range(3))
    @pytest.mark.parametrize("b", "xyz")
    @pytest.mark.parametrize(("c", "d"), [(1, 1), (2, 2)])
    def test_all(a, b, c, d): print(f"<{{a}} {{b}} {{c}}>")
    """
THOROUGH = """
    import pytest, suite.soak
    @pytest.mark.soak(only=True)
    def test_long(): pass
    @pytest.mark.parametrize("size", [1, *suite.soak.in_soak(2, 3)])
    def test_short(size): pass
    """
THREE = """
    import pytest, time
    @pytest.mark.soak
    @pytest.mark.parametrize("number", range(3))
    def test_it(number, cases):
        print(f"<{number} {list(cases(2, 9000))}>")
        time.sleep({pause})
    """


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess("-p", "suite.soak", "--strict-markers", "-s", *options)


def said(result: pytest.RunResult) -> list[str]:
    """What the tests printed between < and >, in the order in which they ran."""
    return [part.partition(">")[0] for part in result.stdout.str().split("<")[1:]]


@pytest.mark.parametrize(("options", "count"), [((), 3), (("--soak",), 50)])
def test_a_soak_tries_more_cases(pytester: pytest.Pytester, options: tuple[str, ...], count: int) -> None:
    source = f"import pytest\n@pytest.mark.soak\ndef test_cases(cases):\n    assert cases(3, 50) == range({count})"
    run(pytester, source, *options).assert_outcomes(passed=1)


def test_what_only_a_soak_runs_is_left_out_of_the_suite(pytester: pytest.Pytester) -> None:
    run(pytester, THOROUGH).assert_outcomes(passed=1, deselected=3)
    run(pytester, THOROUGH, "--soak").assert_outcomes(passed=4)
    run(pytester, THOROUGH, "--soak", "-m", "soak").assert_outcomes(passed=3, deselected=1)


@pytest.mark.parametrize(("strength", "passed"), [(1, 3), (2, 9)])
def test_a_grid_is_covered_in_the_suite_and_whole_in_a_soak(
    pytester: pytest.Pytester, strength: int, passed: int
) -> None:
    source = GRID.format(strength=strength)
    result = run(pytester, source)
    result.assert_outcomes(passed=passed, deselected=18 - passed)
    kept = [tuple(line.split()) for line in said(result)]
    for places in itertools.combinations(range(3), strength):
        values = [("012", "xyz", "12")[place] for place in places]
        assert {tuple(row[place] for place in places) for row in kept} == set(itertools.product(*values))
    run(pytester, source, "--soak").assert_outcomes(passed=18)
    run(pytester, source, "--soak", "-m", "soak").assert_outcomes(passed=18 - passed, deselected=passed)


def test_a_combination_that_is_asked_for_by_name_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=GRID.format(strength=1))
    for name in ("1-1-x-0", "2-2-z-2", "2-2-y-0"):
        pytester.runpytest_inprocess("-p", "suite.soak", f"test_it.py::test_all[{name}]").assert_outcomes(passed=1)


def test_a_slice_is_the_same_for_the_same_seed_and_another_for_another(pytester: pytest.Pytester) -> None:
    source = THREE.replace("{pause}", "0")
    first, again, other = (
        said(run(pytester, source, "--soak", "-m", "soak", f"--soak-slice={seed}")) for seed in ("abc", "abc", "abd")
    )
    assert first == again
    assert sorted(first) != sorted(other), "the cases differ"
    assert all(len(line.split()) == 3 for line in first + other), "as many as in the suite"
    assert first != sorted(first) or other != sorted(other), "and the order"


def test_a_slice_begins_nothing_when_its_time_is_over(pytester: pytest.Pytester) -> None:
    source = THREE.replace("{pause}", "0.2")
    result = run(pytester, source, "--soak", "-m", "soak", "--soak-slice=1", "--soak-seconds=0.1", "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*the 0.1 s of this slice are over*"])


@pytest.mark.parametrize("strength", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(2,), (2, 2), (5, 3, 2), (2, 3, 2, 4)])
def test_few_combinations_cover_all_that_stands_together(sizes: Sequence[int], strength: int) -> None:
    whole = [tuple(zip("abcd", row, strict=False)) for row in itertools.product(*map(range, sizes))]
    kept = [whole[number] for number in covering(whole, strength)]

    def together(rows: list[tuple[tuple[str, int], ...]]) -> set[tuple[tuple[str, int], ...]]:
        return {pairs for row in rows for pairs in itertools.combinations(row, min(strength, len(sizes)))}

    assert together(kept) == together(whole)
    assert len(kept) <= 1.5 * _largest(sizes, strength)


def _largest(sizes: Sequence[int], strength: int) -> int:
    """The product of the largest of these numbers: no fewer combinations can do."""
    product = 1
    for size in sorted(sizes, reverse=True)[:strength]:
        product *= size
    return product
