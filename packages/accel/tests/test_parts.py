"""Each part of an Accelerator is built, and works, without one."""

from inspect import signature
from pathlib import Path

import pytest
import torch
from accel import Accelerator, ProjectConfiguration
from accel.build import Components, build_components
from accel.checkpoint.checkpointer import Checkpointer
from accel.checkpoint.registry import CheckpointRegistry
from accel.collectives import CollectiveOps
from accel.preparation import Preparer
from accel.processes import Processes
from accel.settings import Settings, resolve
from accel.step.clipping import GradientClipping
from accel.step.training_step import TrainingStep
from accel.tracking.session import TrackingSession
from accel_state.mesh import Axis
from suite.toy_models import Mlp
from torch.optim import SGD


def asked(**arguments: object) -> tuple[Settings, Components]:
    defaults = {name: parameter.default for name, parameter in signature(Accelerator).parameters.items()}
    settings = resolve({}, defaults | {"cpu": True} | arguments)
    return settings, build_components(settings)


def test_processes_know_their_ranks() -> None:
    _, components = asked()
    processes = Processes(components.run, arranged=True)
    assert (processes.process_index, processes.num_processes, processes.device.type) == (0, 1, "cpu")
    assert processes.rank_on(Axis.SHARD) == 0
    with pytest.raises(RuntimeError, match="no ParallelismConfig"):
        Processes(components.run).rank_on(Axis.SHARD)


def test_collectives_exchange_tensors() -> None:
    _, components = asked()
    collectives = CollectiveOps(components.run, components.accumulation)
    assert collectives.gather(torch.ones(2)).tolist() == [1, 1]
    assert collectives.reduce(torch.ones(2), "mean", scale=3).tolist() == [3, 3]
    assert collectives.pad(torch.ones(1)).tolist() == [1]
    assert not collectives.check_trigger()
    collectives.set_trigger()
    assert collectives.check_trigger()
    assert not collectives.check_trigger()


def test_a_step_is_made_of_what_was_prepared() -> None:
    settings, components = asked(gradient_accumulation_steps=2)
    preparer = Preparer(components, settings)
    training, clipping = TrainingStep(preparer), GradientClipping(preparer)
    model = Mlp()
    model, optimizer = preparer.prepare([model, SGD(model.parameters(), lr=0.1)])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    batch = torch.ones(2, *next(model.parameters()).shape[1:])
    for due in (False, True):
        with training.accumulate(model):
            training.backward(model(batch).sum())
            norm = clipping.clip_norm(model.parameters(), 0.01)
            assert norm > 0.01
            optimizer.step()
            optimizer.zero_grad()
        changed = any(not torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
        assert changed == due
    assert training.free([model, optimizer]) == [None, None]
    assert not preparer.models


def test_checkpoints_hold_what_was_registered(tmp_path: Path) -> None:
    settings, components = asked()
    preparer, project = Preparer(components, settings), ProjectConfiguration()
    registry = CheckpointRegistry(preparer, TrainingStep(preparer))
    tracking = TrackingSession(None, project, device=torch.device("cpu"), main=True)
    checkpoints = Checkpointer(Processes(components.run), registry, project, tracking)
    model = preparer.model(Mlp())
    kept = {name: weight.clone() for name, weight in checkpoints.weights_of(model).items()}
    folder = checkpoints.save(tmp_path / "checkpoint")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert checkpoints.load(folder) == folder
    assert all(torch.equal(weight, kept[name]) for name, weight in model.state_dict().items())
    checkpoints.end()


def test_an_accelerator_is_made_of_them() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Mlp())
    assert accelerator.preparation.models == [model]
    assert accelerator.run is accelerator.processes.run
    assert accelerator.trackers is accelerator.tracking.trackers
