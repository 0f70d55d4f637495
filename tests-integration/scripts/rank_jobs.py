"""What ranks of a test do: functions of a module that a process can import that was started anew."""

import os


def rank() -> int:
    return int(os.environ["RANK"])


def fails_on_rank_1() -> int:
    if rank() == 1:
        raise ValueError("not here")
    return 0


def dies() -> None:
    os._exit(3)
