"""What a rank asks, opens and reads does not grow faster than the logarithm of the ranks, and is what the page says."""

import pytest
from repository import ROOT
from scale.curves.counts import COUNTS, NAMED, measure


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_grows_with_the_logarithm_of_the_ranks_unless_named(name: str) -> None:
    few, many = COUNTS[name](256), COUNTS[name](4096)
    assert (many > 1.51 * few) == (name in NAMED)


def test_the_page_has_the_table_of_counts_and_why_some_grow() -> None:
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text()
    (curve,) = measure(quick=True)
    assert curve.table().partition("\n\n")[2].strip() in page
    assert all(f"{name}: {why}" in page.replace("\n  ", " ") for name, why in NAMED.items())
