"""Answers `accelerate` by accel if ACCEL_AS_ACCELERATE asks for it: Python imports this before a program.

The file accel_compat.pth beside the installed packages does so, and so does the launcher for its processes.
"""

from accel_state.environ import AS_ACCELERATE, flag, process_environ

from accel_compat.finder import install

if flag(process_environ(), AS_ACCELERATE):
    install()
