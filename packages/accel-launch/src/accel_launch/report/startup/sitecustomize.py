"""Install accel's failure file before the script of a process, and let accel answer `accelerate` if that was asked for.

Python imports this module at its start, as the launcher puts its folder first in PYTHONPATH. Here the folder is taken
out again, for the script and its child processes.
"""

import os
import sys
from importlib import import_module

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if entry != _here]
_left = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != _here]
if _left:
    os.environ["PYTHONPATH"] = os.pathsep.join(_left)
else:
    os.environ.pop("PYTHONPATH", None)
_this = sys.modules.pop("sitecustomize")
try:
    import_module("sitecustomize")  # the one that this stands in front of
except ModuleNotFoundError as _error:
    if _error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _this)
try:
    from accel_state.failure_file import install
except ModuleNotFoundError:
    pass  # an interpreter without accel: nothing is told
else:
    install(os.environ)
if os.environ.get("ACCEL_AS_ACCELERATE"):
    import_module("accel_compat.startup")
