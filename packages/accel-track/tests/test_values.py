"""Values of scripts as JSON has them."""

import json
import math
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accel_track.local.lines import as_line
from accel_track.values import as_number, flatten, to_json


@dataclass
class Options:
    lr: float = 0.1
    where: Path = Path("out")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), "NaN"),
        (np.int64(3), 3),
        (np.array([[2.5]]), 2.5),
        (np.array([1, 2]), [1, 2]),
        (True, True),
        ({"a": {1: (2, None)}}, {"a": {"1": [2, None]}}),
        (Options(), {"lr": 0.1, "where": "out"}),
        (Namespace(lr=math.inf), {"lr": "Infinity"}),
        (int, "<class 'int'>"),
    ],
)
def test_a_value_has_words_in_strict_json(value: Any, wanted: Any) -> None:
    assert to_json(value) == wanted
    assert json.loads(json.dumps(to_json(value), allow_nan=False)) == wanted


def test_numbers_that_json_lacks_are_read_back() -> None:
    for value in (math.inf, -math.inf, 2.0, 3):
        assert as_number(to_json(value)) == value
    back = as_number(to_json(math.nan))
    assert back is not None
    assert math.isnan(back)
    assert as_number("good") is as_number([1]) is None


def test_nested_names_are_joined() -> None:
    values = {"loss": {"train": np.float32(1), "test": {"a": 2}}, "note": "good"}
    assert dict(flatten(values)) == {"loss/train": 1, "loss/test/a": 2, "note": "good"}


def test_a_line_is_a_line_whatever_its_names() -> None:
    line = as_line({"</script>\n": 1, "é\u2028": 2})
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"</script>\n": 1, "é\u2028": 2}
