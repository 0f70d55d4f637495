"""Answer `import accelerate` by accel if ACCEL_AS_ACCELERATE asks for it.

This module is imported before a program begins: by the file accel_compat.pth beside the installed packages, or by the
launcher in its processes. Python would continue after an error here, with the real Accelerate, so the process is ended.
"""

from accel_state.environ import AS_ACCELERATE, flag, process_environ

from accel_compat.finder import install

try:
    if flag(process_environ(), AS_ACCELERATE):
        install()
except (ValueError, ImportError) as error:
    raise SystemExit(f"accel-compat: {error}") from None
