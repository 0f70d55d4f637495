"""Where the machines of a job meet at ranks that are given: a store that the first of them serves."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, final

from accel_state.errors import CannotRun

from accel_launch.nodes.addresses import address_towards, listen, wait_until_reachable
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.supervise.signals import Interrupted, SignalSource

#: seconds between two looks, and for others to read why they are refused
LOOK_S, READING_S = 0.05, 1.0
#: seconds for a request to the store, once all have met
REQUEST_S = 10.0
#: what a machine may leave out: another one says it for all
COUNT = "num_processes"


@final
class StaticRendezvous:
    """A rendezvous for torch's elastic agent: machines come with their ranks, in rounds, one for each start.

    `alike` is what a job has to have in common on all machines.
    """

    use_agent_store = False

    def __init__(
        self, node: NodeSpec, source: SignalSource, wait_s: float, alike: Mapping[str, object], *, patient: bool
    ) -> None:
        self._node, self._source, self._wait_s, self._patient = node, source, wait_s, patient
        self._rank, self._host = node.rank or 0, socket.gethostname()
        address = address_towards(node.host, node.port)
        name = self._host if self._rank == 0 else f"{self._host} ({address})"
        self._mine = {"host": name, "pid": os.getpid(), "num_machines": node.count, "alike": dict(alike)}
        self._store: Any = None
        self._round = 0

    def get_backend(self) -> str:
        """The name of this rendezvous."""
        return "static"

    def get_run_id(self) -> str:
        """The name of the job, which its machines know by the address and the port."""
        return "accel"

    def num_nodes_waiting(self) -> int:
        """Nobody comes in the middle of a round."""
        return 0

    def shutdown(self) -> bool:
        """Nothing is left to close."""
        return True

    def next_rendezvous(self) -> Any:
        """The store of the next round, in which all machines have come.

        Raises: CannotRun that names those that have not, or do not fit; Interrupted.
        """
        from torch._C._distributed_c10d import PrefixStore
        from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo

        until = time.monotonic() + self._wait_s
        if self._store is None:
            self._store = self._open(until)
        self._round += 1
        store = PrefixStore(f"round {self._round}", self._store)
        try:
            self._join(store, until)
        except RuntimeError as error:  # of torch's store
            raise CannotRun(
                "launch", [f"machine 0, {self._node.host}, is gone: {str(error).splitlines()[0]}"]
            ) from error
        meeting = RendezvousStoreInfo(self._node.host, self._node.port)
        return RendezvousInfo(store, self._rank, self._node.count, meeting)

    def _open(self, until: float) -> Any:
        node, pause = self._node, self._source.pause
        if self._rank == 0:
            listening = listen(node, until if self._patient else time.monotonic(), pause)
            store = _tcp_store(
                listening.getsockname()[0],
                node.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=REQUEST_S),
                master_listen_fd=listening.detach(),
            )
        else:
            wait_until_reachable(node, until, self._wait_s, pause, patient=self._patient)
            store = self._connect(until)
            store.set_timeout(timedelta(seconds=REQUEST_S))
        return store

    def _connect(self, until: float) -> Any:
        """The store of the first machine; torch waits for ever if somebody else has the port, so a thread does it.

        Raises: CannotRun; Interrupted.
        """
        found: list[Any] = []

        def connect() -> None:
            with suppress(RuntimeError):
                found.append(_tcp_store(self._node.host, self._node.port, is_master=False, wait_for_workers=False))

        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        while thread.is_alive() and time.monotonic() < until:
            self._source.pause(LOOK_S)
        if not found:
            raise self._not_begun()
        return found[0]

    def _join(self, store: Any, until: float) -> None:
        """Returns when all machines have come.

        Raises: CannotRun that says why they have not, also on another machine; Interrupted.
        """
        mine, key = json.dumps(self._mine), f"joined {self._rank}"
        there = json.loads(store.compare_set(key, "", mine))
        if there != json.loads(mine):
            twice = f"{there['host']} and {self._mine['host']}: give each its own"
            self._refuse(store, [f"machine_rank {self._rank} was given on two machines, {twice}"])
        came: dict[int, dict[str, Any]] = {self._rank: self._mine}
        try:
            while not store.check(["go"]):
                if store.check(["refused"]):
                    raise CannotRun("launch", json.loads(store.get("refused")))
                if self._rank == 0 and self._all_here(store, came, until):
                    store.set("go", "1")
                elif time.monotonic() >= until + (READING_S if came else 0) and self._rank != 0:
                    raise self._not_begun()
                self._source.pause(LOOK_S)
        except Interrupted as interrupted:
            with suppress(RuntimeError):
                by = f"by {interrupted.number.name} from outside, while its launcher waited for the others"
                store.set("refused", json.dumps([f"machine {self._rank}, {self._host}, was ended {by}"]))
            awaited = f"machine 0, {self._node.host}, to begin"
            if self._rank == 0:
                awaited = f"{self._absent(came)} of {self._node.count} to come"
            raise Interrupted(interrupted.number, awaited) from None

    def _all_here(self, store: Any, came: dict[int, dict[str, Any]], until: float) -> bool:
        """Whether all machines are there, of those that the first one has not seen yet."""
        node = self._node
        for machine in range(node.count):
            if machine not in came and store.check([f"joined {machine}"]):
                came[machine] = json.loads(store.get(f"joined {machine}"))
                problems = self._differences(came[machine])
                if problems:
                    self._refuse(store, problems)
        if len(came) < node.count and time.monotonic() >= until:
            there = ", ".join(f"{machine} ({one['host']})" for machine, one in sorted(came.items()))
            where = f"--main_process_ip {node.host} --main_process_port {node.port}"
            self._refuse(
                store,
                [
                    f"{self._absent(came)} of {node.count} did not come within {self._wait_s:g} s; here: machine"
                    f" {there}. Start accel launch there with {where}, or wait longer: --join_timeout"
                ],
            )
        return len(came) == node.count

    def _absent(self, came: Mapping[int, object]) -> str:
        return f"machine {', '.join(str(one) for one in range(self._node.count) if one not in came)}"

    def _differences(self, other: Mapping[str, Any]) -> list[str]:
        """What another machine says of the job that this one says otherwise."""
        mine = {"num_machines": self._mine["num_machines"], **dict(self._mine["alike"])}  # type: ignore[call-overload] # a mapping by its maker
        theirs = {"num_machines": other["num_machines"], **other["alike"]}
        problems = []
        for name in mine:
            if mine[name] == theirs.get(name) or (name == COUNT and None in (mine[name], theirs.get(name))):
                continue
            why = "it counts the processes of all machines together, so give" if name == COUNT else "give"
            where = f"{name} is {mine[name]} on {self._host}, and {theirs.get(name)} on {other['host']}"
            problems.append(f"{where}: {why} all the same")
        return problems

    def _refuse(self, store: Any, problems: list[str]) -> None:
        store.set("refused", json.dumps(problems))
        if self._rank == 0:
            self._source.pause(READING_S)
        raise CannotRun("launch", problems)

    def _not_begun(self) -> CannotRun:
        return CannotRun("launch", [f"machine 0, {self._node.host}, has not begun within {self._wait_s:g} s"])


def _tcp_store(*where: Any, **options: Any) -> Any:
    from torch._C._distributed_c10d import TCPStore

    try:
        return TCPStore(*where, **options)
    except RuntimeError as error:
        if "libuv" not in str(error):
            raise
        return TCPStore(*where, **{**options, "use_libuv": False})  # torch was built without it
