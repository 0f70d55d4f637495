"""A progress bar that one process shows for all."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from accel_state import PartialState


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """The bar that `tqdm.auto.tqdm` makes of the other arguments, shown once a machine; on request by every process.

    Raises: ImportError, with what to do, where tqdm is not installed.
    """
    if find_spec("tqdm") is None:
        raise ImportError("accel.tqdm shows the progress bars of tqdm, which is not installed: pip install tqdm")
    from tqdm.auto import tqdm as bar

    if main_process_only and not PartialState().is_local_main_process:
        kwargs["disable"] = True
    return bar(*args, **kwargs)
