"""Ranks that hold different datasets are told so, and those that hold the same are left in peace."""

import random
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_ops.fingerprint import Check, Fingerprint, check_same_dataset, fingerprint
from accel_testing import MakePool
from odd_datasets import Holds, Odd, Slotted, Stream, data, seeded
from suite.toy_models import RangeDataset, RangeStream
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split


class HuggingFaceStream(Stream):
    """What `datasets.distributed.split_dataset_by_node` leaves of an iterable dataset."""

    def __init__(self, rank: int) -> None:
        super().__init__(_distributed=DistributedConfig(rank, 2))


class DistributedConfig:
    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size


def refused(make: Callable[[int], Any], check: Check = "error") -> str:
    """What the check says of the datasets that the ranks make; an empty text when it lets them pass."""
    transport = TorchDist()
    try:
        check_same_dataset(make(transport.rank), transport, check)
    except ValueError as error:
        return str(error)
    return ""


def unseeded(rank: int) -> Dataset[Any]:
    torch.manual_seed(rank)
    return random_split(data(), [12, 8])[0]


def told() -> tuple[str, str, str, str]:
    mine = str(fingerprint(unseeded(TorchDist().rank)))
    return mine, refused(unseeded), refused(seeded), str(fingerprint(seeded(TorchDist().rank)))


def test_a_split_without_a_seed_is_refused_on_every_rank(world: MakePool) -> None:
    (first, told_first, fine, same), (second, told_second, fine_too, same_too) = world(2).run(told)
    assert first != second
    assert told_first == told_second
    assert f"\n  rank 0: {first}\n  rank 1: {second}\n" in told_first
    assert first.startswith("Subset, 12 samples, ")
    assert "What differs: indices (" in told_first
    assert "random_split(..., generator=torch.Generator().manual_seed(0))" in told_first
    assert 'DataLoaderConfiguration(check_datasets="warn")' in told_first
    assert (fine, fine_too) == ("", "")
    assert same == same_too


def numbers(*, seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def circle(rank: int) -> Holds:
    """Six datasets around each other, each of which holds the outermost one again, three times."""
    inner = outermost = Holds()
    for _ in range(6):
        inner.dataset = Holds()  # type: ignore[attr-defined] # any attribute may be set
        inner.datasets = [outermost] * 3  # type: ignore[attr-defined] # any attribute may be set
        inner = inner.dataset  # type: ignore[attr-defined] # any attribute may be set
    inner.files = [f"part-{rank}"]  # type: ignore[attr-defined] # any attribute may be set
    return outermost


# What ranks that differ must be told of, and what the message has to name.
DIFFERENT: dict[str, tuple[Callable[[int], Any], str]] = {
    "tensors": (lambda rank: TensorDataset(torch.arange(300.0) + rank), "tensors ("),
    "lengths": (lambda rank: RangeDataset(8 + rank), "What differs: the length."),
    "classes": (lambda rank: RangeDataset(8) if rank else Holds(), "What differs: the class."),
    "an array in another order": (lambda rank: Holds(order=numbers(seed=rank).permutation(1000)), "order ("),
    "a list of other files": (lambda rank: Holds(files=[f"part-{rank}-{at}" for at in range(5)]), "files ("),
    "a part of a concatenation": (
        lambda rank: ConcatDataset([data(), Subset(data(), [1 + rank, 2])]),
        "datasets[1].indices (",
    ),
    "a split inside of a wrapper": (lambda rank: Holds(dataset=unseeded(rank)), "dataset.indices ("),
    "columns": (lambda rank: Holds(columns={"text": ["a", "b"], "label": [0, rank]}), "columns ("),
    "samples of a list": (lambda rank: [{"text": "a", "label": rank}], "the dataset itself ("),
    "ranges": (lambda rank: Subset(data(), range(rank, 8 + rank)), "indices ("),
    "sizes of tensors": (lambda rank: Holds(x=torch.zeros(3, 2 + rank, device="meta")), "x ("),
    "numbers of a stream": (
        lambda rank: Stream(start=50 * rank, stop=50),
        "What differs: start (0 on rank 0, 50 on rank 1).\nLikely it is sharded already",
    ),
    "a range of a stream": (
        lambda rank: Stream(part=range(50 * rank, 50)),
        "part (range(0, 50) on rank 0, range(50, 50) on rank 1)",
    ),
    "a pair of a stream": (lambda rank: Stream(bounds=(rank, 2)), "bounds ("),
    "files of a stream": (lambda rank: Stream(files=[f"/data/{at}.tar" for at in range(rank, 8, 2)]), "files ("),
    "a stream inside of a stream": (lambda rank: Stream(source=Stream(index=rank)), "source.index (0 on rank 0, 1 on"),
    "far inside of a circle": (lambda rank: circle(rank), "dataset.dataset.dataset.dataset.dataset.dataset.files ("),
    "a stream split by node": (HuggingFaceStream, "sharded already, by split_dataset_by_node"),
    "a stream split by node inside of another": (
        lambda rank: Stream(source=HuggingFaceStream(0)),
        "sharded already, by split_dataset_by_node",
    ),
}


def different() -> dict[str, str]:
    return {name: refused(make) for name, (make, _) in DIFFERENT.items()}


def test_different_datasets_are_refused_on_every_rank_with_what_differs(world: MakePool) -> None:
    first, second = world(2).run(different)
    assert first == second
    for name, (_, words) in DIFFERENT.items():
        assert words in first[name], name
        assert "\n  rank 0: " in first[name]
        assert "\n  rank 1: " in first[name]


def test_a_stream_is_advised_otherwise_than_a_split(world: MakePool) -> None:
    told = world(2).run(different)[0]
    assert "Pass the unsharded dataset" in told["numbers of a stream"]
    assert "random_split" not in told["numbers of a stream"]
    assert "Pass the unsharded dataset" not in told["columns"]


def divided() -> str:
    return refused(lambda rank: Subset(data(), range(rank, 20, 2)))


def test_data_that_was_divided_by_hand_is_to_be_passed_whole(world: MakePool) -> None:
    """Both remedies, as nobody can tell one cause from the other."""
    for told in world(2).run(divided):
        assert "seed it, as by random_split(..., generator=torch.Generator().manual_seed(0))" in told
        assert "pass the whole dataset: each rank is given its part of it" in told


def everything_differs() -> str:
    return refused(lambda rank: Stream(**{f"n{at}": rank for at in range(9)}))


def test_a_message_stays_short(world: MakePool) -> None:
    (told, _) = world(2).run(everything_differs)
    assert "n4 (0 on rank 0, 1 on rank 1); more.\n" in told
    assert "n5" not in told


def test_one_process_has_nobody_to_differ_from() -> None:
    split = HuggingFaceStream(0)
    assert check_same_dataset(split, Single()) == fingerprint(split)


def test_a_fingerprint_names_class_and_length() -> None:
    assert str(fingerprint(RangeDataset(3))).startswith("RangeDataset, 3 samples, ")
    assert str(fingerprint(RangeStream(3))).startswith("RangeStream, no length, ")
    found = fingerprint(RangeDataset(3))
    assert found == Fingerprint("RangeDataset", 3, found.digest)


@pytest.mark.parametrize("samples", [30, 300, 100_000])
def test_two_random_splits_differ_and_the_same_one_does_not(samples: int) -> None:
    everything = TensorDataset(torch.zeros(samples))
    first, second, again = (
        random_split(everything, [samples - 1, 1], generator=torch.Generator().manual_seed(seed))[0]
        for seed in (1, 2, 1)
    )
    assert fingerprint(first).digest == fingerprint(again).digest
    assert fingerprint(first).digest != fingerprint(second).digest
    assert fingerprint(first).digest != fingerprint(Subset(everything, sorted(first.indices))).digest


def test_no_random_number_is_drawn_and_no_sample_read() -> None:
    states = random.getstate(), torch.get_rng_state(), np.random.get_state(legacy=False)
    held = Holds(dataset=data(), files=["a", "b"], order=np.arange(2000), rng=random.Random(1))
    fingerprint(held)
    fingerprint(Stream(source=held))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert str(np.random.get_state(legacy=False)) == str(states[2])


class Negative:
    def __len__(self) -> int:
        return -1


@pytest.mark.parametrize(
    "error", [TypeError(), NotImplementedError(), AttributeError(), RuntimeError(), ValueError(), KeyError(), OSError()]
)
def test_a_dataset_that_answers_nothing_has_a_fingerprint_of_no_length(error: Exception) -> None:
    assert fingerprint(Odd(error)).length is None


def test_strange_datasets_have_fingerprints() -> None:
    assert fingerprint(Slotted()).length == 2
    assert fingerprint(Negative()).length is None
    assert fingerprint(None).length is None
    odd = Holds(value=Odd(OSError()), values=[Odd(OSError()), 10**6000], huge=range(10**6000), **{"a b": [1]})
    vars(odd)[1] = [2]  # type: ignore[index] # a name that is no text
    assert fingerprint(odd).length == 8
    assert fingerprint(Stream(huge=10**6000, wide=range(10**6000), very=-(10**6000))).length is None


def drawn(rank: int) -> TensorDataset:
    torch.manual_seed(rank)
    return TensorDataset(torch.randn(8, 2), torch.randint(9, (8,)))


def judged() -> list[tuple[str, str, str]]:
    makers: list[Callable[[int], Any]] = [drawn, lambda rank: Holds(x=torch.randn(8) + rank), unseeded]
    said = []
    for make in makers:
        refusals = refused(make, "error")
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            default, warned = refused(make, True), refused(make, "warn")
        assert not warned
        said.append((refusals[:34], default[:34], "".join(str(warning.message) for warning in heard)))
    return said


def test_random_tensors_are_a_warning_unless_an_error_is_asked_for(world: MakePool) -> None:
    """S174: with the seed to set; other differences are a warning on request."""
    first, second = world(2).run(judged)
    refusal = "all ranks share one dataset, and hold different ones:"[:34]
    assert (
        [row[:2] for row in first] == [row[:2] for row in second] == [(refusal, ""), (refusal, ""), (refusal, refusal)]
    )
    assert [row[2] for row in second] == [""] * 3, "rank 0 speaks for all"
    for _, _, words in first[:2]:
        assert words.count("seed them alike on all ranks, as by accel.utils.set_seed(0)") == 2
    assert first[2][2].count("What differs: indices (") == 1


def of_unlike_lengths() -> list[str]:
    """What preparing says of datasets with 8 and 9 samples where a warning is asked for."""
    transport, said = TorchDist(), []
    ways: list[dict[str, Any]] = [{}, {"even_batches": False}, {"dispatch_batches": True}]
    for way in ways:
        loader = DataLoader(RangeDataset(8 + transport.rank), batch_size=2)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                prepare_data_loader(loader, transport=transport, check_datasets="warn", **way)
            except ValueError as error:
                said.append(str(error))
            else:
                said.append(" ".join(str(each.message) for each in told))
    return said


def test_unlike_lengths_are_an_error_if_ranks_would_wait_without_end(world: MakePool) -> None:
    """S174."""
    first, second = world(2).run(of_unlike_lengths)
    assert first[0] == second[0]
    assert "What differs: the length." in first[0]
    assert "a warning is not enough" in first[0]
    assert all("What differs: the length." in words and "not enough" not in words for words in first[1:])
    assert second[1:] == ["", ""], "rank 0 speaks for all"


def test_a_check_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="check_datasets='warning': expected True, False"):
        prepare_data_loader(DataLoader(RangeDataset(8)), check_datasets="warning")  # type: ignore[arg-type]


def test_texts_are_exchanged_only_if_digests_differ() -> None:
    """What is the same on all ranks takes one comparison of 16 bytes."""
    compared, mine = list[bytes](), fingerprint(RangeDataset(3))

    def agreeing(alike: bool) -> Any:
        def agree(what: str, about: bytes) -> list[bytes] | None:
            compared.append(about)
            return [b""] if alike else None

        def gather(value: Fingerprint) -> list[Fingerprint]:
            assert not alike
            return [value, value]

        return SimpleNamespace(rank=0, size=4096, agree=agree, all_gather_objects=gather)

    assert check_same_dataset(RangeDataset(3), agreeing(True)) == mine
    assert check_same_dataset(RangeDataset(3), agreeing(False)) == mine
    check_same_dataset(RangeDataset(4), agreeing(True))
    assert [len(about) for about in compared] == [16] * 3
    assert compared[0] == compared[1] != compared[2]
