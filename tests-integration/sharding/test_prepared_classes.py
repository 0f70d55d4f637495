"""T31: what class a prepared model has under each layout, and what of the user's class it keeps."""

from typing import Any, NamedTuple

import pytest
from accel import Accelerator, TorchDynamoPlugin
from accel_testing import MakePool
from sharded_models import LAYOUTS, Odd


class Mine(Odd):
    """A model with a method and an attribute of its own."""

    motto = "of the user"

    def count(self) -> int:
        return len(self.blocks)


class Kept(NamedTuple):
    class_name: str
    is_of_the_class: bool
    unwrapped: str
    same_keys: bool
    has_methods: bool


def kept(ways: dict[str, Any], backend: str, regional: bool) -> Kept:
    plugin = TorchDynamoPlugin(backend=backend, use_regional_compilation=regional)
    accelerator = Accelerator(cpu=True, dynamo_plugin=plugin, **ways)
    raw = Mine()
    keys = list(raw.state_dict())
    model: Any = accelerator.prepare(raw)
    inner = accelerator.unwrap_model(model)
    whole = accelerator.get_state_dict(model)  # of sharded models on the main process
    return Kept(
        type(model).__name__,
        isinstance(model, Mine),
        type(inner).__name__,
        list(inner.state_dict()) == keys and list(whole) in (keys, []),
        hasattr(model, "count") and hasattr(model, "motto"),
    )


@pytest.mark.parametrize(
    ("layout", "name", "unwrapped"),
    [
        ("one process", "Mine", "Mine"),
        ("ddp", "ForwardingContainer", "Mine"),
        ("fsdp2", "FSDPMine", "FSDPMine"),
        ("hsdp", "FSDPMine", "FSDPMine"),
        ("tp", "FSDPMine", "FSDPMine"),
    ],
)
def test_a_prepared_model_keeps_keys_and_methods_also_in_a_container(
    world: MakePool, layout: str, name: str, unwrapped: str
) -> None:
    """What docs/guides/sharding.md says of the class of a model."""
    processes, ways = LAYOUTS[layout]
    for found in world(processes).run(kept, ways, "no", True):
        in_container = layout == "ddp"
        assert found == Kept(name, not in_container, unwrapped, True, True)


@pytest.mark.parametrize("regional", [True, False])
def test_a_compiled_model_keeps_its_class(regional: bool) -> None:
    assert kept({}, "eager", regional) == Kept("Mine", True, "Mine", True, True)
