"""How often checkpoints are taken, as users write it."""

import pytest
from accel_state.save_interval import SaveInterval


@pytest.mark.parametrize(
    ("given", "steps", "seconds"), [(5, 5, None), ("5", 5, None), ("30s", None, 30), (" 2 s", None, 2)]
)
def test_an_interval_is_steps_or_seconds(given: int | str, steps: int | None, seconds: int | None) -> None:
    assert SaveInterval.of(given) == SaveInterval(steps, seconds)


@pytest.mark.parametrize("given", [0, -1, True, 2.5, None, "", "s", "0s", "5m", "30 s x"])
def test_other_values_are_no_interval(given: object) -> None:
    assert SaveInterval.of(given) is None
