"""Models of Transformers, metrics, saves behind the loop, and what DeepSpeed's engine cannot serve."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import accel
import pytest
import torch
import toy_language_models
from accel import Accelerator, DeepSpeedPlugin, LocalSGD
from accel_testing import MakePool
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from toy_language_models import Case
from trained_runs import Trained, assert_same

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed: nox -s deepspeed")

CASES = [
    Case("llama", dtype="float32", steps=6),
    Case("gpt2", dtype="float32", steps=6, frozen=True, every=2, weighted=True),
    Case("llama", dtype="float32", steps=6, adapters=True),
    Case("llama", dtype="float32", steps=6, recompute=True),
]


COMPILED = [
    Case("llama", dtype="float32", steps=4, backend="aot_eager"),
    Case("llama", dtype="float32", steps=4, backend="aot_eager", regional=False),
    Case("llama", dtype="float32", steps=4, backend="aot_eager", recompute=True),
]


def train(case: Case, stage: int) -> Trained:
    with pytest.MonkeyPatch.context() as patch:
        ways: dict[str, Any] = {"deepspeed_plugin": DeepSpeedPlugin(zero_stage=stage)} if stage else {}
        patch.setitem(toy_language_models.LAYOUTS, "ddp", ways or {"strategy": "ddp"})
        return toy_language_models.train(case, "ddp")


@pytest.mark.parametrize("case", CASES, ids=["llama", "tied and frozen", "adapters", "recomputed"])
def test_models_of_transformers_train_as_ddp_does(world: MakePool, case: Case) -> None:
    """S114: also adapters, and activations that are computed again."""
    pool = world(2)
    wanted = pool.run(train, case, 0, timeout_s=60)[0]
    wanted = wanted._replace(weights={name.removeprefix("module."): value for name, value in wanted.weights.items()})
    for stage in (2, 3):
        for found in pool.run(train, case, stage, timeout_s=60):
            assert_same(found, wanted, 1e-5)


@pytest.mark.parametrize("case", COMPILED, ids=["blocks", "the whole model", "blocks that are recomputed"])
def test_compiled_models_train_as_ddp_does(world: MakePool, case: Case) -> None:
    """The model that DeepSpeed's engine holds is compiled, and the engine is not."""
    pool = world(2)
    wanted = pool.run(train, case._replace(backend="no"), 0, timeout_s=60)[0]
    wanted = wanted._replace(weights={name.removeprefix("module."): value for name, value in wanted.weights.items()})
    for stage in (2, 3):
        for found in pool.run(train, case, stage, timeout_s=90):
            assert_same(found, wanted, 1e-5)


def prepared(stage: int) -> tuple[Accelerator, Any, Any]:
    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(zero_stage=stage))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    return accelerator, model, optimizer


def evaluated(stage: int) -> Tensor:
    accelerator, model, _ = prepared(stage)
    rows = torch.randn(23, 6, generator=torch.Generator().manual_seed(1))
    loader: Any = accelerator.prepare(DataLoader(TensorDataset(rows), batch_size=3))
    model.eval()
    with torch.no_grad():
        return torch.cat([accelerator.gather_for_metrics(model(batch)) for (batch,) in loader])


def test_metrics_see_each_sample_once_and_in_order(world: MakePool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    wanted = model(torch.randn(23, 6, generator=torch.Generator().manual_seed(1))).detach()
    for stage in (2, 3):
        for found in world(2).run(evaluated, stage):
            torch.testing.assert_close(found, wanted)


def saved_behind(stage: int, folder: str) -> list[bool]:
    """Whether weights and moments come back that have changed since the call."""
    accelerator, model, optimizer = prepared(stage)

    def step() -> None:
        accelerator.backward(model(torch.ones(2, 6)).square().sum())
        optimizer.step()
        optimizer.zero_grad()

    def numbers() -> dict[str, Tensor]:
        return {name: value.clone() for name, value in accelerator.unwrap_model(model).state_dict().items()}

    step()
    accelerator.save_state(folder, asynchronous=True)
    then = numbers()
    step()
    later = numbers()
    accelerator.wait_for_checkpoint()
    accelerator.load_state(folder)
    loaded = numbers()
    step()
    again = numbers()
    return [
        all(torch.equal(loaded[name], value) for name, value in then.items()),
        any(not torch.equal(later[name], value) for name, value in then.items()),
        all(torch.equal(again[name], value) for name, value in later.items()),
    ]


def test_a_save_behind_has_the_numbers_of_its_moment(world: MakePool, tmp_path: Path) -> None:
    for stage in (1, 3):
        assert world(2).run(saved_behind, stage, str(tmp_path / str(stage))) == [[True] * 3] * 2


def refusals(stage: int) -> list[str]:
    accelerator, model, _ = prepared(stage)
    with pytest.raises(ValueError, match="no_sync") as local:
        LocalSGD(accelerator, model, 2)
    with accel.init_empty_weights():
        empty = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="meta") as meta:
        accelerator.prepare(empty, torch.optim.SGD(empty.parameters(), lr=0.1))
    return [str(local.value), str(meta.value)]


def test_local_steps_and_empty_models_are_refused(world: MakePool) -> None:
    for told in world(2).run(refusals, 2):
        assert told[0].startswith("no_sync: DeepSpeed's engine reduces gradients in its own backward")
        assert "2 parameters are on the meta device, such as weight: load weights before prepare, or build" in told[1]
