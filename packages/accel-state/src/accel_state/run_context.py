"""Hold the only global state: the run of this process."""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from accel_comm.errors import NoRun
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.process_group import GroupOptions, close_group, count_in, end_of_group, limit_of_open_group
from accel_comm.status_store import open_status_store
from accel_comm.watchdog import Watchdog

from accel_state.accumulation import AccumulationState
from accel_state.devices import Device, choose
from accel_state.environ import FLIGHT_RECORDER, SHARED_MEMORY, WATCHDOG, flag, process_environ
from accel_state.environments import detect
from accel_state.errors import CannotRun, RunConflict, TopologyError
from accel_state.exit_codes import HUNG
from accel_state.failure_file import install
from accel_state.mesh import MeshSpec
from accel_state.rendezvous import adopt, join_group
from accel_state.run import Run, RunRequest
from accel_state.store_exchange import StoreExchange
from accel_state.topology import LOCAL, TORCHRUN

if TYPE_CHECKING:
    import torch

_process: Run | None = None
_watchdog: Watchdog | None = None
_group = GroupOptions()
_accumulation: weakref.ref[AccumulationState] | None = None


def is_initialized() -> bool:
    """Return whether this process has a run."""
    return _process is not None and not _process.forgotten


def current() -> Run:
    """Return the run of this process.

    Raises:
        NoRun: Before `acquire`.
    """
    if _process is None:
        raise NoRun("this process has no run yet; create an Accelerator() or a PartialState() first")
    return _process


def acquire(request: RunRequest) -> Run:
    """Return the run of this process, which the first call starts.

    Later calls have to agree with it. A run whose process group was closed by somebody else, as by an engine that calls
    the script again in this process, is over: the next call that `renews` starts another, and the others see what was.

    Raises:
        RunConflict: With each point of disagreement.

    Collective:
        The first call of a job with several processes waits for all of them.
    """
    global _process
    if _process is not None and request.renews:
        if _process.is_over():
            release()
        else:
            _refuse_other_rank(_process)
    if _process is None or (_process.forgotten and request != RunRequest()):
        install(process_environ())  # for torchrun; accel launch has done so before the script began
        _process = _start(request)
    else:
        run = _agree(_process, request)
        _process = replace(run, forgotten=False) if run.forgotten else run
    return _process


def release() -> None:
    """Forget the run of this process, and close the process group if the run has opened it."""
    global _process, _accumulation
    run, _process, _accumulation = _process, None, None
    if run is not None:
        _end(run)


def follow(accumulation: AccumulationState | None) -> None:
    """Let `newest_accumulation` return this object from now on, as long as somebody else holds it."""
    global _accumulation
    _accumulation = None if accumulation is None else weakref.ref(accumulation)


def newest_accumulation() -> AccumulationState | None:
    """Return the accumulation of the newest Accelerator of the run, or None if there is none any more."""
    return None if _accumulation is None else _accumulation()


def ask_anew(*, start: bool = False) -> None:
    """Forget the precision and the mesh that were asked of the run, so that later requests may ask for others.

    The process group stays open, and what uses the run goes on in it.

    Args:
        start: Whether the next request that asks for anything starts a run, on a device of its own, if this process is
            alone.
    """
    global _process
    if _process is not None:
        forgotten = _process.forgotten or (start and _process.topology.world_size == 1)
        _process = replace(_process, precision=None, asked_mesh=None, device_mesh=None, plugins={}, forgotten=forgotten)


def _close_if_over() -> bool:
    """Return whether the run is over, which is told to ranks that wait for this process in memory."""
    run = _process
    if run is None or not run.is_over():
        return False
    run.transport.close()
    return True


def _end(run: Run) -> None:
    _stop_watchdog()
    run.transport.close()
    if run.opened_group and not run.is_over():
        close_group()


def _start(request: RunRequest) -> Run:
    environ = process_environ()
    topology = adopt(detect(environ))
    _refuse_mesh(request.mesh, topology.world_size)
    device = choose(cpu=request.cpu, environ=environ)
    device.join(topology)
    placed_on = device.place(topology.local_rank if topology.local_world_size > 1 else None)
    if topology.world_size == 1:
        from accel_comm.transports.single import Single

        return Run(topology, device, placed_on, Single(), request.precision, asked_mesh=request.mesh)
    opened = join_group(topology, device.group_backend, request.group)
    import torch.distributed as dist
    from accel_comm.transports.torch_dist import TorchDist

    folder = environ.get(FLIGHT_RECORDER)
    recorder = _recorder(folder, topology.rank) if folder else FlightRecorder()
    global _group
    _group, number = request.group, count_in(dist.distributed_c10d._get_default_store(), "runs", topology.rank)
    options = request.group
    if not opened and options.timeout is None:
        options = replace(options, timeout=limit_of_open_group())  # somebody else's, who had reasons
    store = open_status_store(topology.rank, number)
    if _is_on(environ, WATCHDOG):
        global _watchdog
        leave = functools.partial(os._exit, HUNG)
        limit_s = options.limit.total_seconds()
        size = topology.world_size
        _watchdog = Watchdog(store, recorder, size, limit_s=limit_s, leave=leave, is_over=_close_if_over)
        _watchdog.start()
        atexit.register(_stop_watchdog)
    shares = _is_on(environ, SHARED_MEMORY)
    transport = TorchDist(recorder, store, share_memory=shares, device=placed_on.type)
    notes = StoreExchange(store, recorder)
    run = Run(topology, device, placed_on, transport, request.precision, opened, store=notes, is_over=end_of_group())
    run = _arranged(run, request.mesh)
    if placed_on.type != "cpu" and request.group.backend is None:
        try:
            _refuse_shared_hardware(transport.all_gather_objects(_hardware(device, placed_on, environ), "own hardware"))
        except CannotRun:
            _end(run)
            raise
    return run


def _refuse_mesh(mesh: MeshSpec | None, world_size: int) -> None:
    problems = mesh.problems(world_size) if mesh is not None else []
    if problems:
        raise CannotRun("the processes cannot be arranged as asked", problems)


def _arranged(run: Run, mesh: MeshSpec | None) -> Run:
    """Return the run with torch's mesh of its processes, for which every process must call."""
    if mesh is None or mesh == run.asked_mesh:
        return run
    device_mesh = mesh.build(run.placed_on.type) if run.topology.world_size > 1 else None
    return replace(run, asked_mesh=mesh, device_mesh=device_mesh)


def _hardware(device: Device, placed_on: torch.device, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the identity of the hardware of this process: slices of a GPU are chosen by variable and have its UUID."""
    hardware_id = device.hardware_id(placed_on)
    return None if hardware_id is None else (hardware_id, environ.get("CUDA_VISIBLE_DEVICES", ""))


def _refuse_shared_hardware(everyone: Sequence[tuple[str, str] | None]) -> None:
    ranks_on: dict[tuple[str, str], list[str]] = {}
    for rank, hardware in enumerate(everyone):
        if hardware is not None:
            ranks_on.setdefault(hardware, []).append(str(rank))
    shared = [f"ranks {', '.join(ranks)} see only {name}" for (name, _), ranks in ranks_on.items() if len(ranks) > 1]
    if shared:
        raise CannotRun(
            "each process was to have an accelerator of its own",
            [
                *shared,
                "start fewer processes a machine, show each another one (CUDA_VISIBLE_DEVICES), or ask for the CPU"
                " (cpu=True); to share it on purpose, InitProcessGroupKwargs(backend='gloo')",
            ],
        )


@functools.cache
def _recorder(folder: str, rank: int) -> FlightRecorder:
    """Return the flight recorder of this process, in which a second run continues: the launcher reads one file."""
    return FlightRecorder(Path(folder) / str(rank) if Path(folder).is_dir() else None)


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return name not in environ or flag(environ, name)


def _stop_watchdog() -> None:
    global _watchdog
    watchdog, _watchdog = _watchdog, None
    if watchdog is not None:
        atexit.unregister(_stop_watchdog)
        watchdog.close()


def _refuse_other_rank(run: Run) -> None:
    """Raise if the environment has given this process another place since its run began."""
    then = now = run.topology
    with suppress(TopologyError):  # half set, by a library that needs some of it for itself
        now = detect(process_environ())
    # other libraries write the address too, but not where torchrun or an engine has
    moved = run.opened_group and then.launcher == now.launcher == TORCHRUN and then.rendezvous != now.rendezvous
    if now.launcher != LOCAL and (moved or (then.rank, then.world_size) != (now.rank, now.world_size)):
        raise RunConflict(
            f"this process already runs as {then.place}, and {now.launcher} now says {now.place}; end that run first,"
            " by accel_state.release() or torch.distributed.destroy_process_group()"
        )


def _agree(run: Run, request: RunRequest) -> Run:
    conflicts = []
    if request.cpu and run.placed_on.type != "cpu":
        conflicts.append(f"device={run.placed_on.type!r} (now asked: 'cpu')")
    if request.group != GroupOptions() and run.topology.world_size > 1 and request.group != _group:
        conflicts.append(f"a process group that is open already (now asked: {request.group})")
    if request.precision is not None and run.precision not in (None, request.precision):
        conflicts.append(f"mixed_precision={run.precision!r} (now asked: {request.precision!r})")
    if request.mesh is not None and run.asked_mesh not in (None, request.mesh):
        conflicts.append(f"{run.asked_mesh} (now asked: {request.mesh})")
    if conflicts:
        raise RunConflict(
            "this process already runs with "
            + " and ".join(conflicts)
            + "; ask for the same everywhere, or only the first time"
        )
    _refuse_mesh(request.mesh, run.topology.world_size)
    if run.precision is None and request.precision is not None:
        run = replace(run, precision=request.precision)
    return _arranged(run, request.mesh)
