"""Estimates of the memory that a model takes, as a user sees them."""

from typing import Literal

from accel_big.estimate_report import report


def told(model: object, form: Literal["table", "json"] = "table") -> str:
    """The report of a model trained in float32 by Adam."""
    return report(str(model), dtypes=["float32"], optimizer="adam", form=form)
