"""torch.set_default_device changes where tensors of the script are made, and none of those that accel needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel_checkpoint import TensorFile
from accel_data.sharding.index_order import draw
from accel_testing import MakePool, assert_same_numbers
from suite.toy_models import Regression
from torch.optim import SGD
from torch.utils.data import RandomSampler


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def saved_and_loaded(target: str, asynchronous: bool) -> tuple[float, float]:
    folder, model = Path(target), Regression(1.0, 2.0)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with default_device("meta"):
        accelerator = Accelerator(cpu=True)
        prepared, prepared_optimizer = accelerator.prepare(model, optimizer)
        for parameter in model.parameters():
            parameter.grad = parameter.detach().clone()
        prepared_optimizer.step()
        accelerator.save_state(folder, asynchronous=asynchronous)
        accelerator.wait_for_checkpoint()
        with torch.no_grad():
            model.a.zero_()
            model.b.zero_()
        optimizer.state.clear()
        accelerator.load_state(folder)
        accelerator.save_model(prepared, folder.with_name(f"weights-{accelerator.process_index}"))
    momenta = [entry["momentum_buffer"] for entry in optimizer.state.values()]
    assert {tensor.device.type for tensor in (model.a, model.b, *momenta)} == {"cpu"}
    return model.a.item(), model.b.item()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_is_whole_whatever_device_is_the_default(
    world: MakePool, tmp_path: Path, asynchronous: bool
) -> None:
    """A checkpoint that is staged on a GPU would be read through a pointer of the GPU."""
    numbers = world(2).run(saved_and_loaded, str(tmp_path / "state"), asynchronous)
    assert numbers == [pytest.approx((0.9, 1.8))] * 2


def test_a_file_is_read_to_the_cpu(tmp_path: Path) -> None:
    model = Regression(1.0, 2.0)
    with default_device("meta"):
        accelerator = Accelerator(cpu=True)
        accelerator.save_model(model, tmp_path)
        file = TensorFile(tmp_path / "model.safetensors")
        assert_same_numbers({name: file[name] for name in file.header.tensors}, model.state_dict(), atol=0)


def exchanged() -> Any:
    small, large, empty = torch.arange(3.0), torch.ones(100_000), torch.ones(0)
    with default_device("meta"):
        accelerator = Accelerator(cpu=True)
        small = small + accelerator.process_index
        gathered = accelerator.gather({"small": small, "large": large, "empty": empty})
        return [
            gathered,
            accelerator.reduce(small, "sum"),
            accelerator.pad_across_processes(small[: accelerator.process_index + 1]),
            accelerator.gather_for_metrics(["text"]),
        ]


def test_what_is_exchanged_stays_on_the_cpu(world: MakePool) -> None:
    small, large = torch.arange(3.0), torch.ones(200_000)
    whole = {"small": torch.cat([small, small + 1]), "large": large, "empty": torch.ones(0)}
    for rank, found in enumerate(world(2).run(exchanged)):
        padded = torch.tensor([0.0, 0.0] if rank == 0 else [1.0, 2.0])
        assert_same_numbers(found, [whole, torch.tensor([1.0, 3.0, 5.0]), padded, ["text", "text"]], atol=0)


def test_an_order_is_drawn_on_the_cpu() -> None:
    expected = draw(RandomSampler(range(8), generator=torch.Generator().manual_seed(3)), 0, 1)
    with default_device("meta"):
        drawn = draw(RandomSampler(range(8), generator=torch.Generator().manual_seed(3)), 0, 1)
        without_generator = draw(RandomSampler(range(8)), 0, 1)
    assert drawn.digest(8) == expected.digest(8)
    assert without_generator.end == 8
