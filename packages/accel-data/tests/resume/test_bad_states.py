"""A7: what a loader cannot go on from is refused with all reasons; what only breaks a promise is said once."""

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accel_data import ResumeError, prepare_data_loader, skip_first_batches
from accel_data.resume.loader_state import FORMAT, LoaderState
from suite.toy_models import RangeDataset, RangeStream
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

State = dict[str, Any]


def shuffled(n: int = 20, size: int = 2, **more: Any) -> Any:
    own = torch.Generator().manual_seed(3)
    return prepare_data_loader(DataLoader(RangeDataset(n), size, shuffle=True, generator=own, **more))


def place_in(loader: Any, steps: int = 3) -> State:
    for step, _ in enumerate(loader, start=1):
        if step == steps:
            break
        state: State = loader.state_dict()
    else:
        raise AssertionError("too few steps")
    return state


def refused(loader: Any, state: Any, **more: Any) -> str:
    before = loader.state_dict()
    with pytest.raises(ResumeError) as error:
        loader.load_state_dict(state, **more)
    assert str(loader.state_dict()) == str(before)  # nothing half-done
    return str(error.value)


def warned(loader: Any, state: State, **more: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader.load_state_dict(state, **more)
        list(loader)
    return [str(one.message) for one in caught]


def test_another_length_is_refused_or_warned_of() -> None:
    state = place_in(shuffled(20))
    text = refused(shuffled(24), state)
    assert "the dataset had 20 samples and has 24 samples" in text
    assert "load_state_dict(state, strict=False) accepts another dataset in the same order" in text


def test_another_content_is_refused_or_warned_of() -> None:
    def loader(content: int) -> Any:
        return prepare_data_loader(DataLoader(TensorDataset(torch.arange(20) * content), 2))

    state = place_in(loader(1))
    assert "the dataset had the fingerprint" in refused(loader(2), state)
    (text,) = warned(loader(2), state, strict=False)
    assert text.startswith("continuing, although the dataset had the fingerprint")
    assert "samples may be repeated or left out" in text
    assert warned(loader(1), state) == []


def test_a_newer_format_is_refused() -> None:
    state = shuffled().state_dict() | {"format": FORMAT + 1}
    text = refused(shuffled(), state)
    assert f"format {FORMAT + 1}" in text
    assert f"up to {FORMAT}" in text


@pytest.mark.parametrize("state", [None, 7, {}, {"model": 1}, [1], {"format": "1"}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    assert "needs what state_dict of a prepared loader returned" in refused(shuffled(), state)


def test_unknown_entries_are_refused() -> None:
    assert "unexpected keyword argument 'colour'" in refused(shuffled(), shuffled().state_dict() | {"colour": "red"})


def test_all_reasons_are_told_at_once() -> None:
    state = place_in(shuffled(20)) | {"consumed": -3}
    text = refused(prepare_data_loader(DataLoader(RangeDataset(9), batch_sampler=[[0], [1, 2]])), state)
    assert "20 samples and has 9" in text
    assert "neither can be negative" in text
    assert "counted in samples and this loader counts batches" in text


def test_another_number_of_workers_is_refused_if_the_stream_needs_it() -> None:
    def stream(workers: int) -> Any:
        return prepare_data_loader(DataLoader(RangeStream(20), 2, num_workers=workers))

    text = refused(stream(2), place_in(stream(0)))
    assert "read by 1 loader workers and is now by 2" in text
    assert "use num_workers=1" in text


def test_map_style_data_may_have_other_workers() -> None:
    state = place_in(shuffled())
    loader = shuffled(num_workers=1)
    loader.load_state_dict(state)
    assert len(list(loader)) == 8


class Forgetful(torch.utils.data.Sampler[int]):
    """An order that comes from nowhere."""

    hidden = random.Random(5)

    def __iter__(self) -> Iterator[int]:
        return iter(self.hidden.sample(range(300), 300))

    def __len__(self) -> int:
        return 300


def test_an_order_that_does_not_repeat_is_refused_when_it_is_drawn() -> None:
    def loader() -> Any:
        return prepare_data_loader(DataLoader(RangeDataset(300), 50, sampler=Forgetful()))

    state = place_in(loader())
    again = loader()
    again.load_state_dict(state)
    with pytest.raises(ResumeError, match="the sampler does not repeat its order: the first 100 samples of epoch 0"):
        next(iter(again))


def test_another_global_batch_is_said_once_and_no_sample_is_lost() -> None:
    whole = [number for batch in shuffled() for number in batch.tolist()]
    state = place_in(shuffled())  # two batches of two
    loader = shuffled(size=5)
    with pytest.warns(
        UserWarning, match="took 2 samples of the job and takes 5 now: each is still served once"
    ) as told:
        loader.load_state_dict(state)
    assert len(told) == 1
    assert [number for batch in loader for number in batch.tolist()] == whole[4:]


def test_a_stream_that_has_to_be_read_again_says_how_much() -> None:
    def stream() -> Any:
        return prepare_data_loader(DataLoader(RangeStream(20), 2))

    (text,) = warned(stream(), place_in(stream()))
    assert text.startswith("4 samples are read again from RangeStream, and skipped")


class Placed(IterableDataset[int]):
    """A stream that can be put at a place."""

    def __init__(self) -> None:
        self.at, self.reads = 0, 0

    def state_dict(self) -> State:
        return {"at": self.at}

    def load_state_dict(self, state: State) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[int]:
        while self.at < 20:
            self.at += 1
            self.reads += 1
            yield self.at - 1
        self.at = 0


def test_a_stream_that_can_be_put_at_a_place_is_not_read_again() -> None:
    """T21: no sample is read twice."""
    state = place_in(prepare_data_loader(DataLoader(Placed(), 2)))
    dataset = Placed()
    loader: Any = prepare_data_loader(DataLoader(dataset, 2))
    loader.load_state_dict(state)
    assert [number for batch in loader for number in batch.tolist()] == list(range(4, 20))
    assert dataset.reads == 16


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "2"])
def test_what_cannot_be_skipped_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number of at least 0"):
        skip_first_batches(shuffled(), wrong)


@pytest.mark.parametrize("kind", ["map", "plain", "stream", "shards"])
def test_skipped_batches_are_left_out_of_every_pass(kind: str) -> None:
    """The epochs of the rest are counted with those of the loader."""

    class Shards(IterableDataset[int]):
        def shard(self, num_shards: int, index: int) -> Any:
            return [number for number in range(16) if number % num_shards == index]

        def __iter__(self) -> Iterator[int]:
            return iter(range(16))

    dataset: Any = {"stream": RangeStream(16), "shards": Shards()}.get(kind, RangeDataset(16))
    plain: Any = DataLoader(dataset, 4)
    loader: Any = plain if kind == "plain" else prepare_data_loader(plain)
    rest: Any = skip_first_batches(loader, 2)
    for _ in range(2):
        assert [batch.tolist() for batch in rest] == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert rest.iteration == 2
    if kind != "plain":
        assert loader.iteration == 2
        assert len(list(loader)) == 4
    if kind == "map":
        assert len(dataset.reads) == 2 * 8 + 16


def test_a_pass_that_runs_while_a_state_is_loaded_is_forgotten() -> None:
    whole = [batch.tolist() for batch in shuffled()]
    state = place_in(shuffled())
    loader = shuffled()
    for _ in loader:
        loader.load_state_dict(state)
        break
    assert loader.iteration == 0
    assert [batch.tolist() for batch in loader] == whole[2:]


def test_of_what_ranks_tell_of_a_source_the_newest_counts() -> None:
    """Every rank knows where all sources stood when the job was resumed, and where its own stand now."""
    resumed = {"0": {"at": 12}, "1": {"at": 12}}
    zero = {"taken": {"0": 6, "1": 4}, "sources": resumed | {"0": {"at": 6}}, "front": {"0": {"at": 0}}}
    one = {"taken": {"0": 4, "1": 6}, "sources": resumed | {"1": {"at": 6}}, "front": {"1": {"at": 0}}}
    merged = LoaderState.merged([zero, one])
    assert merged["taken"] == {"0": 6, "1": 6}
    assert merged["sources"] == {"0": {"at": 6}, "1": {"at": 6}}
    assert merged["front"] == {"0": {"at": 0}, "1": {"at": 0}}
    assert merged["consumed"] == 12
