"""The page "Coming from Accelerate" has what the table of names says."""

import name_table


def test_the_page_has_the_table_of_names() -> None:
    """S175."""
    assert name_table.shown() == name_table.made(), "run `python tests-integration/tools/name_table.py`"
