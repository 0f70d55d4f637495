"""A CUDA graph that a script captures while accel's threads read what was logged and ask for the end of an exchange."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accel import Accelerator
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.status_store import open_status_store
from accel_comm.transports.torch_dist import TorchDist
from accel_comm.watchdog import Watchdog
from accel_track.tracker import GeneralTracker
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from gpu_checks.check import Findings, Setup
from gpu_checks.one_rank import accelerator_in_group, group_of_one
from gpu_checks.training import batches, equal, parameters_of, perceptron

WARM_UP, REPLAYS = 3, 4
#: tenths of a second that a capture lasts: the threads look every tenth and every quarter of a second
LASTS = (10, 3)


def run(setup: Setup, findings: Findings) -> None:
    """Captures a step beside each thread, and beside both; each replay has to be a step."""
    with group_of_one(setup) as device:
        for name, (pump, watchdog) in {
            "no thread": (False, False),
            "the pump": (True, False),
            "the watchdog": (False, True),
            "pump and watchdog": (True, True),
        }.items():
            with findings.part(name):
                _beside(setup, findings, name, device, pump=pump, watches=watchdog)


class Told(GeneralTracker):
    """A tracker that keeps what it is told, in the thread of the pump."""

    name = "told"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Mapping[str, Any]] = []

    @property
    def tracker(self) -> Any:
        """What it has kept."""
        return self.values

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Keeps the values."""
        self.values.append(values)


def _beside(setup: Setup, findings: Findings, name: str, device: torch.device, *, pump: bool, watches: bool) -> None:
    told, recorder = Told(), FlightRecorder()
    accelerator = accelerator_in_group(setup, "single", "no", log_with=told)
    accelerator.init_trackers("gpu_checks")
    transport = TorchDist(recorder, device=device.type)
    watchdog = Watchdog(open_status_store(0, len(findings.facts)), recorder, 1, limit_s=600, leave=lambda: None)
    if watches:
        watchdog.start()
    try:
        begun, ended, hand, ours = _captured(setup, accelerator, told, transport, device, pump=pump)
    finally:
        if watches:
            watchdog.close()
        accelerator.end_training()
    same = "to the bit" if equal(hand, ours) else "within rounding"
    findings.facts[name] = f"{begun} when it began, {ended} when it ended; {REPLAYS} replays equal to steps {same}"
    close = all(torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6) for mine, theirs in zip(ours, hand, strict=True))
    assert close, f"weights after replays differ from those of eager steps ({begun}, {ended})"
    if watches and not setup.rehearsal:
        assert transport.recorder._on_device is None, "the watchdog has not found that the exchange is over"
    if pump:
        assert [set(values) for values in told.values] == [{"loss"}, {"weight"}], f"the tracker was told {told.values}"


def _captured(
    setup: Setup, accelerator: Accelerator, told: Told, transport: TorchDist, device: torch.device, *, pump: bool
) -> tuple[str, str, list[Tensor], list[Tensor]]:
    """What the threads had done when the capture began and when it ended, and the weights by hand and by replays."""
    ((inputs, targets),) = batches(device, 1, 32)
    bare = perceptron().to(device)
    reference = copy.deepcopy(bare)
    capturable = not setup.rehearsal  # the CPU has no such step
    model, optimizer = accelerator.prepare(bare, AdamW(bare.parameters(), lr=1e-3, capturable=capturable))

    def step() -> Tensor:
        loss = cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        return loss

    def warm_up() -> None:
        for _ in range(WARM_UP):
            optimizer.zero_grad()
            loss = step()
        optimizer.zero_grad()
        if pump:
            accelerator.log({"loss": loss.detach()}, step=1)

    graph = None if setup.rehearsal else torch.cuda.CUDAGraph()
    if graph is None:
        warm_up()
    else:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call] # of torch
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            warm_up()
        torch.cuda.current_stream().wait_stream(side)
    transport.all_gather(torch.ones(1 << 20, device=device))
    if pump:  # it has not looked yet when the capture begins
        accelerator.log({"weight": next(bare.parameters()).detach().flatten()[0]}, step=2)
    capture: AbstractContextManager[Any] = nullcontext() if graph is None else torch.cuda.graph(graph)
    with capture:
        begun = _done(told, transport)
        step()
        time.sleep(setup.size(*LASTS) / 10)
        ended = _done(told, transport)
    replays = REPLAYS if graph is not None else REPLAYS - 1  # a rehearsal has made the step that a capture only notes
    for _ in range(replays):
        if graph is not None:
            graph.replay()
        else:
            optimizer.zero_grad()
            step()
    return begun, ended, _by_hand_alike(reference, inputs, targets, capturable=capturable), parameters_of(bare)


def _by_hand_alike(model: nn.Module, inputs: Tensor, targets: Tensor, *, capturable: bool) -> list[Tensor]:
    optimizer = AdamW(model.parameters(), lr=1e-3, capturable=capturable)
    for _ in range(WARM_UP + REPLAYS):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call] # of torch
        optimizer.step()
    return parameters_of(model)


def _done(told: Told, transport: TorchDist) -> str:
    """What the pump has delivered, and whether the watchdog knows that the exchange is over; nothing is asked here."""
    pending = transport.recorder._on_device is not None
    return f"{len(told.values)} logged, the exchange {'not known to be over' if pending else 'over'}"
