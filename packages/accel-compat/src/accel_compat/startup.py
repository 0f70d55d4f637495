"""Answers `accelerate` by accel if ACCEL_AS_ACCELERATE asks for it: Python imports this before a program.

The file accel_compat.pth beside the installed packages does so, and so does the launcher for its processes.
Python would go on after an error here, with the real Accelerate: so it ends.
"""

from accel_state.environ import AS_ACCELERATE, flag, process_environ

from accel_compat.finder import install

try:
    if flag(process_environ(), AS_ACCELERATE):
        install()
except (ValueError, ImportError) as error:
    raise SystemExit(f"accel-compat: {error}") from None
