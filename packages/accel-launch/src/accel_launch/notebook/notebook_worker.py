"""One process of a notebook launcher: `python -m accel_launch.notebook.notebook_worker FOLDER PARENT`."""

import os
import sys
import traceback
from pathlib import Path

from accel_launch.notebook.notebook_files import failure_file, read_function, read_search_path, write_result
from accel_launch.supervise.process_tree import die_with_parent


def main() -> int:
    """Calls the function and leaves its result or its traceback in the folder; 1 if it failed."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    rank = int(os.environ["RANK"])
    sys.path[:] = read_search_path(folder)
    sys.argv[1:] = []
    try:
        function, args = read_function(folder)
        result = function(*args)
    except Exception as error:  # noqa: BLE001 (whatever the user's function raises is shown to the user)
        return _fail(folder, rank, error, "")
    try:
        write_result(folder, rank, result)
    except Exception as error:  # noqa: BLE001 (the result's own pickling code may raise anything)
        told = f"what the function returned on rank {rank}, a {type(result).__name__}, cannot be sent back:"
        return _fail(folder, rank, error, f"{told} return numbers, strings, lists, tensors or None\n")
    return 0


def _fail(folder: Path, rank: int, error: Exception, told: str) -> int:
    # The first frame is `main` above, which tells the user nothing.
    own = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = told + "".join(traceback.format_exception(type(error), error, own))
    failure_file(folder, rank).write_text(text, encoding="utf-8")
    print(text, file=sys.stderr, end="", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
