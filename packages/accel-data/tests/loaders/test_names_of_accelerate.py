"""What scripts for Accelerate make of loaders by hand, and ask of them."""

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from accel_comm.transports.single import Single
from accel_data import DataLoaderDispatcher, DataLoaderShard, prepare_data_loader, skip_first_batches
from accel_data.loaders.state_mixin import DataLoaderStateMixin
from accel_data.loaders.torchdata import with_torchdata
from accel_testing import MakePool
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader

#: a loader of torchdata, of which nothing may be called here
STATEFUL = """
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader
class StatefulDataLoader(DataLoader):
    def __iter__(self): raise AssertionError
    _get_iterator = __len__ = state_dict = load_state_dict = __iter__
"""


@pytest.mark.parametrize("kind", [DataLoaderShard, DataLoaderDispatcher])
def test_a_loader_made_by_hand_knows_its_last_batch(kind: Any) -> None:
    loader = kind(list(range(16)), batch_size=4)
    for _ in range(2):
        assert [loader.end_of_dataloader for _ in loader] == [False, False, False, True]
    assert not loader.end_of_dataloader
    assert isinstance(loader, DataLoaderStateMixin)
    assert loader.base_dataloader is loader
    assert loader.gradient_state is loader.accumulation
    assert not hasattr(kind, "base_dataloader")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = loader.nothing


def test_an_inner_pass_does_not_tell_of_the_outer() -> None:
    outer: Any = DataLoaderShard(range(4), batch_size=2)
    inner: Any = DataLoaderShard(range(4), batch_size=2)
    found = [(outer.end_of_dataloader, inner.end_of_dataloader) for _ in outer for _ in inner]
    assert found == [(False, False), (False, True), (True, False), (True, True)]


def by_hand() -> str:
    __import__("accel_state").PartialState(cpu=True)
    try:
        DataLoaderDispatcher(list(range(4)))
    except ValueError as error:
        return str(error)
    return ""


def test_a_dispatcher_by_hand_needs_the_plan_of_several_processes(world: MakePool) -> None:
    assert all("made by hand for 2 processes" in words for words in world(2).run(by_hand))


@pytest.mark.parametrize("prepared", [False, True])
def test_a_loader_without_its_first_batches_is_as_much_shorter(prepared: bool) -> None:
    """Also if it is prepared after that: no batch comes back."""
    rest: Any = skip_first_batches(DataLoader(RangeDataset(10), batch_size=2), 2)
    rest = prepare_data_loader(rest) if prepared else rest
    assert len(rest) == 3
    assert [batch.tolist() for batch in rest] == [[4, 5], [6, 7], [8, 9]]
    assert len(skip_first_batches(rest, 9)) == 0


@pytest.fixture
def stateful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    (tmp_path / "torchdata").mkdir()
    (tmp_path / "torchdata" / "__init__.py").touch()
    (tmp_path / "torchdata" / "stateful_dataloader.py").write_text(STATEFUL)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchdata"]:
        monkeypatch.delitem(sys.modules, name)
    with_torchdata.cache_clear()
    kind: type[Any] = __import__("torchdata.stateful_dataloader").stateful_dataloader.StatefulDataLoader
    return kind


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_is_torchdatas_by_name_alone(stateful: type[Any], workers: int) -> None:
    given: Any = DataLoader(RangeDataset(12), batch_size=4, num_workers=workers)
    loader: Any = prepare_data_loader(given, use_stateful_dataloader=True, dispatch_batches=True, transport=Single())
    assert isinstance(loader, stateful)
    assert isinstance(loader, DataLoaderDispatcher)
    assert len(loader) == 3
    states = [loader.state_dict() for _ in loader]
    for again in (copy.copy(loader), pickle.loads(pickle.dumps(loader)), skip_first_batches(loader, 0)):
        assert isinstance(again, stateful)
        again.load_state_dict(states[0])
        assert [batch.tolist() for batch in again] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    with_torchdata.cache_clear()


def test_without_torchdata_a_stateful_loader_is_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_data.loaders.torchdata.find_spec", lambda name: None)
    with_torchdata.cache_clear()
    loader: Any = DataLoaderShard(list(range(4)), use_stateful_dataloader=True)
    assert type(loader) is DataLoaderShard
    assert loader.use_stateful_dataloader
    with_torchdata.cache_clear()
