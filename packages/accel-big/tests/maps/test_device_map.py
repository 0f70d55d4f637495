"""Which part of a model goes where."""

import time
from typing import Any

import pytest
import torch
from accel_big import (
    check_device_map,
    clean_device_map,
    compute_module_sizes,
    dispatch_model,
    find_tied_parameters,
    get_balanced_memory,
    infer_auto_device_map,
)
from accel_state.errors import CannotRun
from torch import nn


class Three(nn.Module):
    """Layers of 64, 72 and 100 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(3, 4)
        self.batchnorm = nn.BatchNorm1d(4)
        self.linear2 = nn.Linear(4, 5)


def test_sizes_of_modules_count_tied_weights_once() -> None:
    """S141."""
    model = Three()
    sizes = compute_module_sizes(model)
    assert (sizes[""], sizes["linear1"], sizes["batchnorm"], sizes["linear2"]) == (236, 64, 72, 100)
    halves = compute_module_sizes(model, dtype=torch.float16)
    assert (halves["linear1"], halves["batchnorm.num_batches_tracked"], halves["batchnorm"]) == (32, 8, 40)
    assert compute_module_sizes(model, dtype="int4")["linear1.weight"] == 6
    special = compute_module_sizes(model, torch.float16, {"linear1.weight": torch.float32})
    assert (special["linear1.weight"], special["linear1.bias"]) == (48, 8)
    assert compute_module_sizes(model, buffers_only=True)[""] == 40
    with pytest.raises(CannotRun, match="no such dtype"):
        compute_module_sizes(model, dtype="float99")
    model.linear1.weight = model.linear2.weight
    assert compute_module_sizes(model)[""] == 188
    assert find_tied_parameters(model) == [["linear1.weight", "linear2.weight"]]


def test_devices_are_filled_in_order_and_the_first_keeps_room() -> None:
    """S141: the first device keeps room for the largest layer that is still to come."""
    assert infer_auto_device_map(Three(), {0: 200, 1: 200}) == {"linear1": 0, "batchnorm": 1, "linear2": 1}
    assert infer_auto_device_map(Three(), {0: 200, 1: 72, 2: 200}) == {"linear1": 0, "batchnorm": 1, "linear2": 2}
    assert infer_auto_device_map(Three(), {0: 336, 1: 100}) == {"": 0}
    assert infer_auto_device_map(Three(), {0: "200B", "cpu": 100}) == {
        "linear1": 0,
        "batchnorm": "disk",
        "linear2": "disk",
    }


def test_an_empty_accelerator_gets_a_later_part_if_asked_for() -> None:
    """S141."""
    inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(6, 6))
    model = nn.Sequential(nn.Linear(20, 20), inner, nn.Linear(4, 4))
    memory: dict[int | str, int | str] = {0: 1, 1: 190, "cpu": 10000}
    assert infer_auto_device_map(model, memory) == {"": "cpu"}
    found = infer_auto_device_map(model, memory, fallback_allocation=True)
    assert found == {"0": "cpu", "1.0": "cpu", "1.1": 1, "2": "cpu"}
    model[2].weight = nn.Parameter(model[1][0].weight.new_zeros(4, 4))  # type: ignore[index]
    whole = infer_auto_device_map(model, memory, ["Sequential"], fallback_allocation=True)
    assert whole == {"": "cpu"}, "a part that is not cut may be too large"
    model[2].bias = model[1][1].bias = nn.Parameter(torch.zeros(6))  # type: ignore[index]
    tied = infer_auto_device_map(model, memory, fallback_allocation=True)
    assert tied["1.0"] == 1
    assert tied["1.1"] == tied["2"] == "cpu"


def test_blocks_are_split_unless_they_may_not_be() -> None:
    model = nn.Sequential(Three(), Three(), Three())
    whole = {"0": 0, "1": 1, "2": 1}
    split = {"0": 0, "1.linear1": 0, "1.batchnorm": 0, "1.linear2": 1, "2": 1}
    assert infer_auto_device_map(model, {0: 500, 1: 500}) == split
    assert infer_auto_device_map(model, {0: 500, 1: 500}, no_split_module_classes=["Three"]) == whole

    class Base(nn.Sequential):
        _no_split_modules = ("Three",)

    class Told(Base):
        """Has the list as models of Transformers have it: from their base class."""

    assert infer_auto_device_map(Told(Three(), Three(), Three()), {0: 500, 1: 500}) == whole


def test_tied_weights_go_to_one_device() -> None:
    """S141."""
    model = Three()
    model.linear1.weight = model.linear2.weight
    assert infer_auto_device_map(model, {0: 200, 1: 200}) == {"": 0}
    blocks = [Three(), Three(), Three()]
    stack = nn.Sequential(*blocks)
    blocks[2].linear2.weight = blocks[0].linear2.weight
    expected = {"0": 0, "2.linear2": 0, "1": 1, "2.linear1": 1, "2.batchnorm": 1}
    assert infer_auto_device_map(stack, {0: 400, 1: 500}) == expected
    check_device_map(stack, {name: "cpu" for name in expected})
    # three layers of one weight, of which two are in a block that is not cut
    blocks[1].linear2.weight = blocks[0].linear2.weight
    chosen = infer_auto_device_map(stack, {0: 700, 1: 500}, no_split_module_classes=["Three"])
    assert chosen == {"": 0}
    assert len(set(infer_auto_device_map(stack, {0: 600, 1: 700}, no_split_module_classes=["Three"]).values())) == 1


def test_tensors_of_a_module_with_children_have_entries() -> None:
    model = Three()
    model.scale = nn.Parameter(torch.ones(30))
    model.register_buffer("mean", torch.ones(2))
    chosen = infer_auto_device_map(model, {0: 240, 1: 500})
    assert chosen == {"scale": 0, "mean": 0, "linear1": 1, "batchnorm": 1, "linear2": 1}
    check_device_map(model, {name: "cpu" for name in chosen})


def test_too_little_memory_is_told_with_the_sizes() -> None:
    with pytest.raises(CannotRun, match=r"linear2 needs 100 bytes more, of 236(.|\n)*disk: 72 of 99 bytes are taken"):
        infer_auto_device_map(Three(), {0: 0, "cpu": 200, "disk": 99})
    model = nn.Sequential(Three())
    model.register_buffer("table", torch.ones(100))
    with pytest.raises(CannotRun, match=r"buffers of 4\d\d bytes .* do not fit on device 0"):
        infer_auto_device_map(model, {0: 250, "cpu": 2000})
    assert infer_auto_device_map(model, {0: 250, "cpu": 2000}, offload_buffers=True)


def test_a_balanced_map_shares_the_model_out() -> None:
    """S141."""
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(8)))
    memory = get_balanced_memory(model, {0: 100_000, 1: 100_000, "cpu": 5})
    counts = [list(infer_auto_device_map(model, memory, clean_result=False).values()).count(at) for at in (0, 1)]
    assert counts[0] in (4, 5)
    assert sum(counts) == 8
    low = get_balanced_memory(model, {0: 100_000, 1: 100_000}, low_zero=True)
    assert infer_auto_device_map(model, low) == {"": 1}
    assert get_balanced_memory(model, {0: 300, 1: 300}) == {0: 300, 1: 300}
    assert get_balanced_memory(model, {"cpu": 300}) == {"cpu": 300}


def test_entries_of_one_device_become_one() -> None:
    split = {"a.b": 0, "a.c": 0, "d.e": 1, "d.f": "cpu"}
    assert clean_device_map(split) == {"a": 0, "d.e": 1, "d.f": "cpu"}
    assert clean_device_map({"a.b.c": 0, "a.b.d": 0, "e": 0}) == {"": 0}
    assert clean_device_map({"a.b.c": 0, "a.b.d": 0, "e": 0}, "a") == {"a": 0, "e": 0}


def test_a_map_that_does_not_fit_is_refused_with_all_that_is_wrong() -> None:
    """S141: nothing leaves a map silently."""
    model = Three()
    model.linear1.weight = model.linear2.weight
    wrong: dict[str, Any] = {"linear1": "cpu", "linear2": "disk", "linear3": "cpu", "batchnorm.weight": "nowhere:0"}
    with pytest.raises(CannotRun) as caught:
        check_device_map(model, wrong)
    told = "\n".join(caught.value.reasons)
    assert "'batchnorm.weight': 'nowhere:0'" in told
    assert "no entry covers batchnorm.bias, batchnorm.running_mean" in told
    assert "'linear3' is neither a module nor a tensor" in told
    assert "linear1.weight on cpu, linear2.weight on disk" in told
    with pytest.raises(CannotRun, match="meta device"):
        check_device_map(Three(), {"": "meta"})
    placed = check_device_map(Three(), {"": "cpu", "linear2": "disk"})
    assert (placed["linear1.bias"], placed["linear2.bias"]) == (torch.device("cpu"), "disk")


def test_a_map_of_many_modules_takes_time_in_proportion() -> None:
    """Twice the modules, about twice the time."""
    took = {}
    for blocks in (1000, 4000):
        model = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)) for _ in range(blocks))
        began = time.perf_counter()
        infer_auto_device_map(model, {0: blocks * 16, 1: blocks * 16, "cpu": blocks * 4})
        took[blocks] = time.perf_counter() - began
    assert took[4000] < 12 * took[1000] + 2


def test_a_map_for_a_machine_with_more_devices_is_planned_and_refused_here() -> None:
    """S141: arithmetic needs no device; a model that is dispatched does."""
    model, there = Three(), torch.accelerator.device_count()
    device_map = infer_auto_device_map(model, {there: 200, there + 1: 200})
    assert device_map == {"linear1": there, "batchnorm": there + 1, "linear2": there + 1}
    assert str(check_device_map(model, device_map)["linear1.weight"]).endswith(f":{there}")
    assert get_balanced_memory(model, {there: 200, there + 1: 200})[there] <= 200
    with pytest.raises(CannotRun, match=f"'linear1': {there}: .*; torch finds {there} accelerators") as caught:
        dispatch_model(model, device_map)
    assert len(caught.value.reasons) == 3
    with pytest.raises(CannotRun, match="the index of an accelerator is from 0 to 127"):
        check_device_map(model, {"": 128})
