"""A re-created loader has the settings of the original."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accel_data import DataLoaderShard, prepare_data_loader
from accel_data.prepare import settings_of
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader, default_collate


def nothing(worker_id: int) -> None:
    pass


class WithLoop(DataLoader[Any]):
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch names a private class of its own
        return iter("ab")


class WithMore(DataLoader[Any]):
    """A loader that adds something, and iterates as torch does."""

    purpose = "training"


def given() -> dict[str, Any]:
    return {
        "num_workers": 1,
        "collate_fn": lambda samples: default_collate(samples) + 100,
        "timeout": 30,
        "worker_init_fn": nothing,
        "generator": torch.Generator(),
        "prefetch_factor": 3,
        "persistent_workers": True,
        "in_order": False,
        "pin_memory": False,
    }


def test_the_settings_are_those_that_the_loader_was_given() -> None:
    wanted = given()
    found = settings_of(DataLoader(RangeDataset(4), batch_size=2, **wanted))
    assert {name: found[name] for name in wanted} == wanted
    assert found["multiprocessing_context"] is None


@pytest.mark.parametrize("world", [1, 2])
def test_a_prepared_loader_has_every_setting_of_the_original(world: int) -> None:
    """S42: the loader is re-created."""
    wanted = given()
    loader = prepare_data_loader(
        DataLoader(RangeDataset(8), batch_size=2, **wanted), num_processes=world, process_index=0
    )
    assert {name: getattr(loader, name) for name in wanted} == wanted
    assert next(iter(loader)).tolist() == [100, 101]


def test_a_loader_that_iterates_in_its_own_way_is_refused() -> None:
    with pytest.raises(TypeError, match=r"WithLoop iterates in a way of its own .* prepare a plain DataLoader"):
        prepare_data_loader(WithLoop(RangeDataset(4)))


class StatefulDataLoader(DataLoader[Any]):
    """What torchdata's class has: an `__iter__` of its module, and a place for a state."""

    next_iter_state: dict[str, Any] | None = None

    def __iter__(self) -> Any:
        raise NotImplementedError


StatefulDataLoader.__iter__.__module__ = "torchdata.stateful_dataloader.stateful_dataloader"


def test_the_loader_of_torchdata_is_taken_unless_it_holds_a_state() -> None:
    """S171."""
    stateful = StatefulDataLoader(RangeDataset(4), batch_size=1)
    loader = prepare_data_loader(stateful, num_processes=2, process_index=1)
    assert [batch.tolist() for batch in loader] == [[1], [3]]
    stateful.next_iter_state = {}
    with pytest.raises(ValueError, match="holds a loaded state"):
        prepare_data_loader(stateful, num_processes=2, process_index=1)


def test_a_subclass_that_iterates_like_torch_is_taken() -> None:
    loader = prepare_data_loader(WithMore(RangeDataset(4)), num_processes=2, process_index=1)
    assert isinstance(loader, DataLoaderShard)
    assert [batch.tolist() for batch in loader] == [[1], [3]]
