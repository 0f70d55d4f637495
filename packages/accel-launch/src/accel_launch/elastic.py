"""Several machines that meet by torch's own rendezvous: accel launch becomes torch's elastic agent."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress

from accel_launch.job import Job, become_process
from accel_launch.link import address_towards, interface_towards
from accel_launch.machines import Place
from accel_launch.plan import FAULTS, ProcessSpec, plan_one


def become_agent(job: Job, place: Place) -> None:
    """Replaces this process by the agent; returns never."""
    become_process(agent(job, place))


def agent(job: Job, place: Place) -> ProcessSpec:
    """The process of the agent."""
    settings = job.settings
    about = {
        "machines": place.count,
        "processes": job.count,
        "host": place.host,
        "port": place.port,
        "serves": place.rank == 0 if place.rank is not None else _is_here(place.host),
        "told": place.rank is not None,
        "address": address_towards(place.host, place.port),
        "join_timeout_s": settings.join_timeout,
        "max_restarts": settings.max_restarts,
        "log_dir": str(job.logs) if job.logs is not None else None,
        "tee": int(settings.tee),
        "command": list(job.command),
    }
    interface = interface_towards(place.host, place.port)
    environ = {
        FAULTS: "1",
        "OMP_NUM_THREADS": str(max(1, job.machine.cores // job.count)),
        **({name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")} if interface else {}),
        **plan_one(settings, job.command, job.environ).environ,
        # the agent's own store is for agents: workers that share it hang in the second of two starts
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return ProcessSpec((sys.executable, "-P", "-m", "accel_launch.elastic_agent", json.dumps(about)), environ)


def _is_here(host: str) -> bool:
    """Whether a name or address is one of this machine."""
    with suppress(OSError), socket.socket() as one:
        one.bind((socket.gethostbyname(host), 0))
        return True
    return False
