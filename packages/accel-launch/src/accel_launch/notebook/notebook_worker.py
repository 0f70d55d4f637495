"""Run one process of a notebook launcher, which calls the function that the notebook left in a folder."""

import json
import os
import pickle
import sys
from pathlib import Path

from accel_state.failure_file import install

from accel_launch.supervise.process_tree import die_with_parent

#: names of the files: the function with its arguments, and what a rank has returned
FUNCTION, RESULT = "function.pickle", "result-{}.pickle"


def worker_command(folder: Path) -> tuple[str, ...]:
    """Return the command of a process that finds modules in the places in which this process finds them."""
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
        "from accel_launch.notebook.notebook_worker import main; sys.exit(main())"
    )
    search_path = json.dumps([os.path.abspath(entry) for entry in sys.path])
    return (sys.executable, "-c", code, search_path, str(folder), str(os.getpid()))


def main() -> int:
    """Call the function and leave its result in the folder. Return 1 if it failed, which is told as of any script."""
    folder, parent = Path(sys.argv[2]), int(sys.argv[3])
    die_with_parent(parent)
    install(os.environ)
    sys.argv[1:] = []
    try:
        with (folder / FUNCTION).open("rb") as file:
            function, args = pickle.load(file)
        _write_result(folder / RESULT.format(os.environ["RANK"]), function(*args))
    except Exception as error:  # noqa: BLE001 (whatever the user's function raises is shown to the user)
        # The first frame is that of this function, which tells the user nothing.
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _write_result(path: Path, result: object) -> None:
    """Save the result of the function in a file, which is whole when it has its name."""
    import cloudpickle  # type: ignore[import-untyped] # it has no types

    aside, kind = path.with_suffix(".partial"), type(result).__name__
    try:
        aside.write_bytes(cloudpickle.dumps(result))
    except Exception as error:
        error.add_note(f"what the function returned on rank {os.environ['RANK']}, a {kind}, cannot be sent back:")
        error.add_note("return numbers, strings, lists, tensors or None")
        raise
    aside.rename(path)
