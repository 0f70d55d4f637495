"""Models whose layers and experts Transformers divides while it loads them train as whole ones on one process."""

import math
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_testing import MakePool, ProcessPool
from arriving.models import ALONE, STEPS, Arrival, Leg, train, write_models
from trained_runs import Trained, assert_same

pytestmark = pytest.mark.skipif(not find_spec("transformers"), reason="Transformers is not installed")

#: layers; experts by rows, and whole ones; and whole ones over ranks with samples of their own
TWO = {
    "layers": Arrival("llama", {"tp_size": 2}, {"tp_size": 2}),
    "layers, in windows, by the sizes of the model": Arrival("llama", {"tp_size": 2}, None, every=2),
    "rows of experts": Arrival("mixtral", {"tp_size": 2}, {"tp_size": 2}, router_loss=True),
    "experts": Arrival("qwen3_moe", {"tp_size": 2, "ep_size": 2}, {"tp_size": 2}, router_loss=True),
    "experts of data ranks": Arrival("qwen3_moe", {"fsdp_size": 2, "ep_size": 2}, {"dp_shard_size": 2}, every=2),
}
FOUR = {
    "layers": Arrival("llama", {"tp_size": 4}, {"tp_size": 4}),
    "layers and copies": Arrival(
        "llama", {"tp_size": 2, "dp_replicate_size": 2}, {"tp_size": 2, "dp_replicate_size": 2}, every=2
    ),
    "layers and parts": Arrival("llama", {"tp_size": 2, "fsdp_size": 2}, None, every=2),
    "rows of experts and parts": Arrival("mixtral", {"tp_size": 2, "fsdp_size": 2}, None),
    "experts and parts": Arrival("qwen3_moe", {"tp_size": 2, "fsdp_size": 2, "ep_size": 2}, None, every=2),
    "experts of all ranks": Arrival("mixtral", {"tp_size": 2, "fsdp_size": 2, "ep_size": 4}, None, every=2),
    "copies of experts": Arrival("qwen3_moe", {"fsdp_size": 2, "ep_size": 2, "dp_replicate_size": 2}, None, every=2),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@cache
def alone(models: Path, model: str, every: int, router_loss: bool, last: int) -> Trained:
    return train(models, ALONE._replace(model=model, every=every, router_loss=router_loss), Leg(last=last))


def check(pool: ProcessPool, models: Path, arrivals: Iterable[Arrival]) -> None:
    for arrival in arrivals:
        wanted = alone(models, arrival.model, arrival.every, arrival.router_loss, STEPS)
        for found in pool.run(train, models, arrival, timeout_s=110):
            assert_same(found, wanted, 1e-9)


def test_two_processes_train_a_model_that_arrives_divided_as_one(world: MakePool, models: Path) -> None:
    """Losses, norms and weights; the router's gradient, also that of its own loss."""
    check(world(2), models, TWO.values())  # one pool: each rank of it imports Transformers for 2 s


def test_four_processes_train_a_model_that_arrives_divided_as_one(world: MakePool, models: Path) -> None:
    """Beside copies, and beside parts, which Transformers has made itself."""
    check(world(4), models, FOUR.values())


#: what a training goes on with after each step
JOURNEYS = {
    "llama": [TWO["layers"], FOUR["layers and parts"], ALONE, FOUR["layers"], FOUR["layers and copies"], TWO["layers"]],
    "mixtral": [
        TWO["rows of experts"],
        FOUR["rows of experts and parts"],
        ALONE,
        FOUR["experts of all ranks"],
        TWO["rows of experts"],
    ],
    "qwen3_moe": [TWO["experts"], ALONE, FOUR["copies of experts"], TWO["experts of data ranks"], ALONE],
}


def one_process(call: Callable[..., Trained], *args: Any) -> list[Trained]:
    return [call(*args)]


def test_a_run_goes_on_with_layers_and_experts_divided_otherwise(world: MakePool, models: Path, tmp_path: Path) -> None:
    """On one, two and four processes, from the checkpoint of another number of them."""
    pools = {2: world(2), 4: world(4)}
    for model, journey in JOURNEYS.items():
        wanted = alone(models, model, 1, False, len(journey))
        for step, arrival in enumerate(journey):
            saved = [tmp_path / f"{model} {number}" for number in (step - 1, step)]
            leg = Leg(step, step + 1, saved[0] if step else None, saved[1])
            arrival = arrival._replace(model=model, every=1, router_loss=False)
            ranks = math.prod(size for name, size in arrival.loaded.items() if name != "ep_size")
            run = partial(pools[ranks].run, timeout_s=110) if ranks > 1 else one_process
            found = run(train, models, arrival, leg)[0]
            torch.testing.assert_close(found.losses, wanted.losses[step : step + 1], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found.norms, wanted.norms[step : step + 1], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-9, atol=1e-9)
