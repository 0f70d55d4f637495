"""How the machines of a job meet: at ranks that are given, or in the order in which they come."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, final

from accel_state.errors import CannotRun

from accel_launch.cli.options import C10D, LaunchSettings
from accel_launch.nodes.addresses import address_towards, is_first
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.rendezvous_store import LOOK_S, not_begun, open_store
from accel_launch.supervise.signals import Interrupted, SignalSource

#: seconds for others to read why they are refused
READING_S = 1.0
#: what a machine may leave out: another one says it for all
COUNT = "num_processes"
#: settings that a script reads, and that have to be the same for all its processes
SHARED = (
    *(COUNT, "mixed_precision", "gradient_accumulation_steps", "use_fsdp", "fsdp_config", "use_deepspeed"),
    *("deepspeed_config", "parallelism_config", "dynamo_config"),
)


@final
class NodeRendezvous:
    """The rendezvous of torch's elastic agent: machines come in a round for each start, and the first serves all.

    With the backend static their ranks are given. With c10d a machine may come without a rank, or for a lost machine.
    """

    def __init__(
        self, node: NodeSpec, source: SignalSource, settings: LaunchSettings, processes: int, *, patient: bool
    ) -> None:
        self._node, self._source, self._backend, self._patient = node, source, settings.rdzv_backend, patient
        self._wait_s = settings.join_timeout
        self._serves = node.rank == 0 if node.rank is not None else is_first(node)
        host, address = socket.gethostname(), address_towards(node)
        shared = {"num_machines": node.count, **{name: getattr(settings, name) for name in SHARED}}
        place = host if self._serves else f"{host} ({address})"
        self._mine: dict[str, Any] = {"host": host, "place": place, "pid": os.getpid()}
        self._mine |= {"settings": shared, "processes": processes}
        self._store: Any = None
        self._round = 0
        #: those that have come, as the first machine sees it
        self._machines: dict[int, Any] = {}
        #: the host and the number of processes of each machine of the newest round
        self.machines: list[tuple[str, int]] = []

    def get_backend(self) -> str:
        """The name of this rendezvous."""
        return self._backend

    def get_run_id(self) -> str:
        """The name of the job, which its machines know by the address and the port."""
        return "accel"

    def next_rendezvous(self) -> Any:
        """The store of the next round, in which all machines have come, and the rank of this machine.

        Raises: CannotRun that names the machines that have not come, or do not fit; Interrupted.
        """
        from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo

        node, until = self._node, time.monotonic() + self._wait_s
        try:
            if self._store is None:
                self._store = self._open()
            store, rank = self._join(until)
        except Interrupted as interrupted:
            awaited = f"{self._absent()} to come" if self._serves else f"machine 0, {node.host}, to begin"
            raise Interrupted(interrupted.number, awaited) from None
        except RuntimeError as error:  # of torch's store
            raise CannotRun("launch", [f"machine 0, {node.host}, is gone: {str(error).splitlines()[0]}"]) from error
        return RendezvousInfo(store, rank, node.count, RendezvousStoreInfo(node.host, node.port))

    def _open(self) -> Any:
        try:
            return open_store(self._node, self._source, self._wait_s, serves=self._serves, patient=self._patient)
        except CannotRun:
            if not self._serves or self._node.rank is not None:
                raise
        self._serves = False  # another launcher of this machine has come sooner
        return self._open()

    def _join(self, until: float) -> tuple[Any, int]:
        """The store of a round, and the rank of this machine in it, once all machines have come."""
        from torch._C._distributed_c10d import PrefixStore

        store: Any = None
        rank: int | None = None
        self._machines = {}
        number = self._store.add("round", int(self._serves))
        while rank is None or not store.check(["go"]):
            if rank is None and number > self._round:
                store = PrefixStore(f"round {number}", self._store)
                rank = self._claim(store)
            if store is not None and store.check(["refused"]):
                self._refuse(store, json.loads(store.get("refused")))
            late_s = time.monotonic() - until
            if self._serves:
                self._admit(store, late=late_s >= 0)
            elif late_s >= READING_S:
                raise not_begun(self._node, self._wait_s)
            try:
                self._source.pause(LOOK_S)
            except Interrupted as interrupted:
                self._tell_refusal(store, rank, interrupted)
                raise
            number = self._store.add("round", 0) if rank is None else number
        self._round = number
        self.machines = [(host, processes) for host, processes in json.loads(store.get("go"))]
        return store, rank

    def _tell_refusal(self, store: Any, rank: int | None, interrupted: Interrupted) -> None:
        """Tells the machines of a round that this machine was ended."""
        by = f"by {interrupted.number.name} from outside, while its launcher waited for the others"
        with suppress(RuntimeError):
            if rank is not None:
                store.set("refused", json.dumps([f"machine {rank}, {self._mine['place']}, was ended {by}"]))

    def _claim(self, store: Any) -> int | None:
        """The rank of this machine in a round; None if others have all, as they have begun without it."""
        node = self._node
        ranks: Sequence[int] = range(1, node.count)
        if node.rank is not None or self._serves:
            ranks = [node.rank or 0]
        for rank in ranks:
            holder = json.loads(store.compare_set(f"machine {rank}", "", json.dumps(self._mine)))
            if holder == self._mine:
                return rank
        if self._backend != C10D:
            twice = f"{holder['place']} and {self._mine['place']}: give each its own"
            self._refuse(store, [f"machine_rank {node.rank} was given on two machines, {twice}"])
        return None

    def _admit(self, store: Any, *, late: bool) -> None:
        """Lets all begin once they have come, as the first machine; refuses machines that do not fit, or are late."""
        node, machines = self._node, self._machines
        for rank in range(node.count):
            if rank not in machines and store.check([f"machine {rank}"]):
                machines[rank] = json.loads(store.get(f"machine {rank}"))
                problems = self._differences(machines[rank])
                if problems:
                    self._refuse(store, problems)
        if len(machines) == node.count:
            # all that machines know of each other comes at once: one that is lost later is missed, and not waited for
            told = [(machines[rank]["host"], machines[rank]["processes"]) for rank in range(node.count)]
            store.set("go", json.dumps(told))
        elif late:
            here = ", ".join(f"{rank} ({machine['place']})" for rank, machine in sorted(machines.items()))
            where = f"--main_process_ip {node.host} --main_process_port {node.port}"
            absent = f"{self._absent()} did not come within {self._wait_s:g} s"
            start = f"Start accel launch there with {where}, or wait longer: --join_timeout"
            self._refuse(store, [f"{absent}; here: machine {here}. {start}"])

    def _absent(self) -> str:
        absent = [str(rank) for rank in range(self._node.count) if rank not in (self._machines or (0,))]
        return f"machine {', '.join(absent)} of {self._node.count}"

    def _differences(self, other: dict[str, Any]) -> list[str]:
        """The settings in which another machine differs from this machine, in words."""
        problems = []
        for name, mine in self._mine["settings"].items():
            theirs = other["settings"].get(name)
            if mine != theirs and not (name == COUNT and None in (mine, theirs)):
                why = "it counts the processes of all machines together, so give" if name == COUNT else "give"
                where = f"{name} is {mine} on {self._mine['place']}, and {theirs} on {other['place']}"
                problems.append(f"{where}: {why} all the same")
        return problems

    def _refuse(self, store: Any, problems: Sequence[str]) -> None:
        store.set("refused", json.dumps(problems))
        if self._serves:
            self._source.pause(READING_S)
        raise CannotRun("launch", problems)
