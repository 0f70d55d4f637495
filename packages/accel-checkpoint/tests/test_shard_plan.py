import pytest
import torch
from accel_checkpoint.weights.shard_plan import ShardPlan, plan_shards
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = settings(derandomize=True, deadline=None)


def plan_of(state: dict[str, torch.Tensor], max_bytes: int = 10**9) -> ShardPlan:
    return plan_shards(state, stem="model", suffix=".safetensors", max_bytes=max_bytes)


def test_what_fits_goes_into_one_file() -> None:
    """Feature row S89."""
    plan = plan_of({"a": torch.ones(2), "b": torch.ones(3)}, max_bytes=20)
    assert {file: list(tensors) for file, tensors in plan.files.items()} == {"model.safetensors": ["a", "b"]}
    assert plan.total_bytes == 20


def test_files_are_filled_in_order_and_numbered() -> None:
    """Feature row S89: a tensor larger than a file has one of its own."""
    sizes = {"a": 4, "b": 4, "c": 4, "huge": 40, "d": 1}
    plan = plan_of({name: torch.ones(count, dtype=torch.uint8) for name, count in sizes.items()}, max_bytes=9)
    assert {file: list(tensors) for file, tensors in plan.files.items()} == {
        "model-00001-of-00004.safetensors": ["a", "b"],
        "model-00002-of-00004.safetensors": ["c"],
        "model-00003-of-00004.safetensors": ["huge"],
        "model-00004-of-00004.safetensors": ["d"],
    }
    assert plan.total_bytes == 53


@QUICK
@given(st.lists(st.integers(0, 12), max_size=12), st.integers(1, 20))
def test_every_tensor_is_in_one_file_and_no_file_is_too_large(counts: list[int], max_bytes: int) -> None:
    state = {f"t{index}": torch.zeros(count, dtype=torch.uint8) for index, count in enumerate(counts)}
    plan = plan_of(state, max_bytes=max_bytes)
    assert [name for tensors in plan.files.values() for name in tensors] == list(state)
    assert plan.total_bytes == sum(counts)
    for tensors in plan.files.values():
        size = sum(tensor.numel() for tensor in tensors.values())
        assert size <= max_bytes or sum(tensor.numel() > 0 for tensor in tensors.values()) == 1


def test_tied_weights_are_stored_once_under_the_first_name() -> None:
    """Reference 2.9."""
    weight = torch.ones(4)
    plan = plan_of({"embed": weight, "other": torch.ones(4), "head": weight, "again": weight.detach()}, max_bytes=16)
    assert [list(tensors) for tensors in plan.files.values()] == [["embed"], ["other"]]
    assert plan.aliases == {"head": "embed", "again": "embed"}
    first, second = plan.files
    assert plan.aliases_in(first) == {"head": "embed", "again": "embed"}
    assert plan.aliases_in(second) == {}
    assert plan.total_bytes == 32


def test_other_views_of_the_same_memory_are_no_aliases() -> None:
    base = torch.arange(4.0).view(2, 2)
    state = {
        "base": base,
        "flat": base.view(-1),
        "crossed": base.t(),
        "row": base[1],
        "first": base[0],
        "wide": base[:1].expand(3, 2),
        "bits": base.view(torch.int32),
    }
    plan = plan_of(state)
    (tensors,) = plan.files.values()
    assert plan.aliases == {}
    assert all(torch.equal(tensors[name], state[name]) for name in state)


def test_a_lazy_conjugate_is_no_alias_of_its_original() -> None:
    wave = torch.tensor([1 + 2j])
    plan = plan_of({"wave": wave, "conjugate": wave.conj(), "negative": wave.conj().imag})
    assert plan.aliases == {}
    (tensors,) = plan.files.values()
    assert tensors["conjugate"].tolist() == [1 - 2j]
    assert tensors["negative"].tolist() == [-2.0]


def test_empty_tensors_are_no_aliases_of_each_other() -> None:
    plan = plan_of({"a": torch.zeros(0), "b": torch.zeros(0)})
    assert plan.aliases == {}
    assert [list(tensors) for tensors in plan.files.values()] == [["a", "b"]]


def test_a_plan_copies_no_tensor() -> None:
    """A save that goes on in the background has one copy of the weights, in the memory of its snapshot."""
    weight = torch.ones(2, 4, requires_grad=True)
    (tensors,) = plan_of({"whole": weight, "turned": weight.t(), "part": weight[1]}).files.values()
    assert {tensor.untyped_storage().data_ptr() for tensor in tensors.values()} == {weight.data_ptr()}
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_tensors_stay_on_their_device(device: torch.device) -> None:
    """Also on one that nothing can be copied from, which stands for any."""
    for place in (device, torch.device("meta")):
        there = torch.ones(3, device=place)
        (tensors,) = plan_of({"w": there}).files.values()
        assert tensors["w"].device == there.device


def test_nothing_is_one_empty_file() -> None:
    assert plan_of({}).files == {"model.safetensors": {}}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float64])
def test_sizes_are_counted_in_bytes(dtype: torch.dtype) -> None:
    assert plan_of({"w": torch.ones(3, dtype=dtype)}).total_bytes == 3 * dtype.itemsize
