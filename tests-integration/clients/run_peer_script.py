"""Runs the checks of a script of Accelerate's own tests one by one, and writes what each of them did as JSON.

The first argument is the script, the second the folder for results. A check that fails does not end the run.
"""

import importlib.util
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import accelerate
import accelerate.state

#: what the functions of these scripts that check something begin or end with
BEGINNINGS, ENDS = ("test_", "check_", "dl_preparation", "central_dl"), ("_check",)


class Recorded:
    """A block whose error is noted and goes no further."""

    def __init__(self, name, results):
        self.name, self.results = name, results

    def __enter__(self):
        self.results.setdefault(self.name, "passed")

    def __exit__(self, kind, error, trace):
        if kind is None or issubclass(kind, (KeyboardInterrupt, SystemExit)):
            return False
        traceback.print_exception(kind, error, trace)
        self.results[self.name] = f"{kind.__name__}: {error}"[:2000]
        return True


def recorded(name, function, results):
    def call(*arguments, **options):
        with Recorded(name, results):
            function(*arguments, **options)

    return call


def main(script, folder):
    spec = importlib.util.spec_from_file_location(Path(script).stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = {}
    for name, value in [*vars(module).items()]:
        own = callable(value) and getattr(value, "__module__", None) == module.__name__
        if own and not isinstance(value, type) and (name.startswith(BEGINNINGS) or name.endswith(ENDS)):
            setattr(module, name, recorded(name, value, results))
    # one check sets what follows from the run here
    kind = accelerate.state.AcceleratorState
    kind.distributed_type = property(kind.distributed_type.fget, lambda state, value: None)
    with Recorded("main", results):
        if hasattr(module, "main"):
            module.main()
        else:
            runpy.run_path(script, run_name="__main__")

    results["by"] = accelerate.Accelerator.__module__
    rank = os.environ.get("RANK", "0")
    Path(folder, f"{Path(script).stem}-{rank}.json").write_text(json.dumps(results, indent=1))
    sys.stdout.flush()
    os._exit(0)  # some scripts end their process group, and some do not


if __name__ == "__main__":
    main(*sys.argv[1:3])
