"""A progress bar that one process shows for all."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from accel_state import PartialState


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """Return a progress bar, which is shown once on each machine.

    Args:
        *args: What `tqdm.auto.tqdm` takes.
        main_process_only: False shows a bar for every process.
        **kwargs: The options of `tqdm.auto.tqdm`.

    Raises:
        ImportError: tqdm is not installed.
    """
    if find_spec("tqdm") is None:
        raise ImportError("accel.tqdm shows the progress bars of tqdm, which is not installed: pip install tqdm")
    from tqdm.auto import tqdm as bar

    if main_process_only and not PartialState().is_local_main_process:
        kwargs["disable"] = True
    return bar(*args, **kwargs)
