"""Every feature has a test that names it."""

from feature_rows import named, rows, untested


def test_every_row_has_a_test() -> None:
    assert untested() == [], "write the row's number into the docstring of the test that holds it"


def test_tests_name_rows_that_exist() -> None:
    planned = {f"S{number}" for number in range(1, 128)} | {"S104b", "S108a", "S108b", "S114b"}
    assert set(named()) <= set(rows()) | planned
