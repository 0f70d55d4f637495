"""Requests to the store of a job against its ranks: up to 4,096 of them in one process, and a store that counts."""

from __future__ import annotations

from accel_comm.hang_detector import HEARTBEAT_S, LATE_S
from simulated_ranks import SimulatedJob, waiting_since

from scale.curve import Curve

#: seconds of the job that are counted when nobody waits, and the limit of a wait
QUIET_S, LIMIT_S = 60.0, 600.0


def quiet(size: int) -> float:
    """Requests a second and rank when nobody waits."""
    return SimulatedJob(size).run(QUIET_S) / QUIET_S / size


def waiting(size: int) -> float:
    """The same while all but rank 0 wait for it, for ten minutes."""
    job = SimulatedJob(size, limit_s=2 * LIMIT_S)
    return job.run(LIMIT_S, waiting_since(0.0, *range(1, size)), lambda rank: "gather") / LIMIT_S / size


def deadlock(size: int) -> float:
    """Requests of a rank from the beginning of a wait of all for each other until the last has left."""
    job = SimulatedJob(size)
    job.run(2 * HEARTBEAT_S)
    found = job.run(60.0, waiting_since(job.now), lambda rank: "gather" if rank % 2 else "reduce (sum)")
    if len(job.left) < size:
        raise RuntimeError(f"{size} ranks wait for each other, and {len(job.left)} have left")
    return found / size


def limit(size: int) -> float:
    """Requests of a rank from the question before the limit of a wait for one that works until the last has left."""
    job = SimulatedJob(size, limit_s=LIMIT_S)
    doing = waiting_since(0.0, *range(1, size))
    job.run(LIMIT_S - HEARTBEAT_S - LATE_S - 0.5, doing, lambda rank: "gather")
    return job.run(60.0, doing, lambda rank: "gather") / size


def measure(*, quick: bool) -> list[Curve]:
    """Two pictures: what is asked all the time, and what one diagnosis asks."""
    sizes = (8, 64) if quick else (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    longest = 512  # of those that last ten minutes of the job: at 4,096 ranks each would take one of ours
    return [
        Curve(
            "store-requests",
            "Requests to the store all the time",
            "ranks",
            "requests a second and rank",
            {
                "nobody waits": [(size, quiet(size)) for size in sizes],
                "all but one wait, for ten minutes": [(size, waiting(size)) for size in sizes if size <= longest],
            },
        ),
        Curve(
            "store-diagnosis",
            "Requests to the store for one diagnosis",
            "ranks",
            "requests of each rank",
            {
                "all wait for each other": [(size, deadlock(size)) for size in sizes],
                "one works, and the limit comes": [(size, limit(size)) for size in sizes if size <= longest],
            },
        ),
    ]
