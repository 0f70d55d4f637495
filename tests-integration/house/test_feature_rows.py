"""Every feature has a test that names it."""

from feature_rows import named, named_in, rows, untested


def test_every_row_has_a_test() -> None:
    assert untested() == [], "write the row's number into the docstring of the test that holds it"


def test_a_test_that_only_a_soak_runs_holds_no_row() -> None:
    test = "def test_it() -> None:\n    'S1, S3: it.'\n"
    assert list(named_in(test)) == [("test_it", "S1"), ("test_it", "S3")]
    assert list(named_in(f"@pytest.mark.soak\n@pytest.mark.grid(1)\n{test}")) != []
    assert list(named_in(f"@pytest.mark.soak(only=True)\n{test}")) == []
    assert list(named_in(f"pytestmark = pytest.mark.soak(only=True)\n{test}")) == []


def test_no_row_that_is_due_is_put_off() -> None:
    """These rows make up the first version."""
    spans = [(1, 9), (12, 68), (73, 91), (95, 100), (106, 107), (109, 109), (113, 113), (120, 127)]
    due = {f"S{number}" for first, last in spans for number in range(first, last + 1)}
    assert due | {"S104b", "S108a", "S108b"} <= set(rows())


def test_tests_name_rows_that_exist() -> None:
    planned = {f"S{number}" for number in range(1, 128)} | {"S104b", "S108a", "S108b", "S114b"}
    assert set(named()) <= set(rows()) | planned
