"""Start training scripts and notebook functions on one or many processes. Importing this package costs nothing."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_launch.notebook.notebook_launcher import debug_launcher, notebook_launcher

__all__ = ["debug_launcher", "notebook_launcher"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    from accel_launch.notebook import notebook_launcher

    return getattr(notebook_launcher, name)
