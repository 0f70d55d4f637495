"""The checks of a device, in the order in which they run: what later checks need comes first."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from accel import Accelerator, FullyShardedDataParallelPlugin, load_checkpoint_in_model
from accel.utils import set_seed
from accel_state.errors import CannotRun
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, TensorDataset

from conformance.check import (
    BATCH,
    HALF_TOLERANCE,
    TOLERANCE,
    NotOffered,
    batches,
    compare,
    make_model,
    require,
    to_cpu,
    train,
    train_plainly,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


def tensors_come_back_as_they_were(accelerator: Accelerator) -> None:
    """Check that tensors of each dtype return from the device as they were, also if they are not contiguous."""
    for dtype in DTYPES:
        tensor = torch.arange(24, device="cpu").view(4, 6).to(dtype)
        there = tensor.to(accelerator.device)
        require(
            f"{dtype} is on {there.device}, and was sent to {accelerator.device}", there.device == accelerator.device
        )
        compare(f"{dtype} after the way to the device and back", there, tensor)
        compare(f"columns of {dtype}", there[:, 1::2], tensor[:, 1::2])


def memory_is_released(accelerator: Accelerator) -> None:
    """Check that unused memory can be released at any time."""
    accelerator.components.run.device.release_memory()
    accelerator.free_memory()


def the_generator_goes_back_to_a_state(accelerator: Accelerator) -> None:
    """Check that a restored state of the generator repeats random numbers."""
    device = accelerator.components.run.device
    state = device.rng_state()
    require(f"the state of the generator is on {state.device}, and belongs on the CPU", state.device.type == "cpu")
    first = torch.rand(8, device=accelerator.device)
    device.set_rng_state(state)
    compare("random numbers of the same state", torch.rand(8, device=accelerator.device), first)


def a_seed_repeats_random_numbers(accelerator: Accelerator) -> None:
    """Check that a seed repeats random numbers."""
    drawn = []
    for _ in range(2):
        set_seed(7)
        drawn.append(torch.rand(8, device=accelerator.device))
    compare("random numbers of the same seed", drawn[1], drawn[0])


def loaders_serve_batches_on_the_device(accelerator: Accelerator) -> None:
    """Check that a prepared loader returns all samples, in order, on the device."""
    rows = torch.arange(4 * BATCH * 2, dtype=torch.float32, device="cpu").view(-1, 2)
    loader = accelerator.prepare(DataLoader(TensorDataset(rows), batch_size=4))
    served = []
    for (batch,) in loader:
        require(f"a batch is on {batch.device}", batch.device == accelerator.device)
        served.append(accelerator.gather_for_metrics(batch))
    compare("the samples of an epoch, in order", torch.cat(served), rows)


def training_has_the_numbers_of_the_cpu(accelerator: Accelerator) -> None:
    """Check that losses and weights are those of plain PyTorch on the CPU."""
    compare("losses and weights", train(accelerator), train_plainly(), TOLERANCE)


def accumulated_micro_batches_are_one_batch(accelerator: Accelerator) -> None:
    """Check that two accumulated micro-batches train as one batch does."""
    accelerator.gradient_accumulation_steps = 2
    try:
        compare("losses and weights of windows of 2", train(accelerator, every=2), train_plainly(), TOLERANCE)
    finally:
        accelerator.gradient_accumulation_steps = 1


def gradients_are_clipped_to_the_norm_of_the_cpu(accelerator: Accelerator) -> None:
    """Check that norms of gradients, and weights after clipping, are those of the CPU."""
    found, wanted = train(accelerator, max_norm=0.1), train_plainly(max_norm=0.1)
    compare("losses, norms and weights", found, wanted, TOLERANCE)


def half_precision_keeps_float32_masters(accelerator: Accelerator) -> None:
    """Check that layers compute in half precision, and that weights are float32."""
    found = train(accelerator)
    compare("losses", found["losses"], train_plainly()["losses"], HALF_TOLERANCE)
    dtypes = {tensor.dtype for tensor in found["weights"].values()}
    require(f"weights are {dtypes}, and not float32", dtypes == {torch.float32})
    model = accelerator.prepare(make_model())
    seen: list[torch.dtype] = []
    accelerator.unwrap_model(model)[0].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    model(next(batches())[0].to(accelerator.device))
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}[accelerator.mixed_precision]
    require(f"a linear layer computes in {seen[0]}, and {half} was asked for", seen == [half])


def an_overflow_skips_the_step(accelerator: Accelerator) -> None:
    """Check that an infinite loss changes no weight."""
    model = nn.Linear(2, 2)
    before = to_cpu(model.state_dict())
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=1.0))
    loss = model(torch.ones(1, 2, device=accelerator.device)).float().sum() * float("inf")
    accelerator.backward(loss)
    optimizer.step()
    require("the step was not skipped", accelerator.optimizer_step_was_skipped)
    compare("weights after a skipped step", accelerator.get_state_dict(model), before)


def ranks_exchange_tensors(accelerator: Accelerator) -> None:
    """Check that gathered, summed and padded tensors are right, and stay on the device."""
    rank, size, device = accelerator.process_index, accelerator.num_processes, accelerator.device
    own = torch.full((2, 3), float(rank), device=device)
    everything = torch.arange(float(size), device="cpu").repeat_interleave(2)[:, None].expand(-1, 3)
    compare("gather", accelerator.gather(own), everything)
    compare("sum", accelerator.reduce(own, "sum"), torch.full((2, 3), size * (size - 1) / 2, device="cpu"))
    uneven = torch.ones(rank + 1, device=device)
    padded = accelerator.pad_across_processes(uneven)
    compare("pad_across_processes", padded, torch.arange(size, device="cpu").le(rank).float())
    require("gather leaves the device", accelerator.gather(own).device == device)


def sharded_training_has_the_numbers_of_the_cpu(accelerator: Accelerator) -> None:
    """Check that the losses of sharded training are those of plain PyTorch on the CPU.

    Raises:
        NotOffered: There is one process, or the device cannot shard.
    """
    if accelerator.num_processes == 1:
        raise NotOffered("one process has nobody to share with; use -n 2")
    try:
        sharded = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
    except CannotRun as error:
        raise NotOffered(str(error)) from None
    compare("losses", train(sharded)["losses"], train_plainly()["losses"], TOLERANCE)


def a_checkpoint_goes_on_bit_for_bit(accelerator: Accelerator) -> None:
    """Check that training from a checkpoint repeats weights and random numbers bit for bit."""
    folder = _folder(accelerator) / "checkpoint"
    model = make_model()
    model, optimizer = accelerator.prepare(model, AdamW(model.parameters(), lr=0.01))

    def steps() -> tuple[dict[str, Tensor], Tensor]:
        for inputs, classes in batches(2):
            loss = nn.functional.cross_entropy(
                model(inputs.to(accelerator.device)).float(), classes.to(accelerator.device)
            )
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return to_cpu(accelerator.get_state_dict(model)), torch.rand(4, device=accelerator.device)

    steps()
    accelerator.save_state(folder)
    wanted = steps()
    accelerator.load_state(folder)
    compare("weights and random numbers after loading, bit for bit", steps(), wanted)


def a_model_on_the_meta_device_is_filled(accelerator: Accelerator) -> None:
    """Check that a model on the meta device can be loaded from files."""
    folder = _folder(accelerator) / "weights"
    model = accelerator.prepare(make_model())
    wanted = to_cpu(accelerator.get_state_dict(model))
    accelerator.save_model(model, folder)
    accelerator.wait_for_everyone()
    with torch.device("meta"):
        fresh = make_model()
    load_checkpoint_in_model(fresh, folder, {"": accelerator.device}, strict=True)
    devices = {parameter.device for parameter in fresh.parameters()}
    require(f"weights are on {devices}", devices == {accelerator.device})
    compare("weights of a model that was on the meta device", fresh.state_dict(), wanted)


def _folder(accelerator: Accelerator) -> Path:
    """Return a new folder for all processes, inside the project folder."""
    name = tempfile.mkdtemp(dir=accelerator.project_dir) if accelerator.is_main_process else ""
    return Path(accelerator.run.transport.broadcast_object(name, 0))


#: the checks of each precision, in the order in which they run
CHECKS: dict[str, Sequence[Callable[[Accelerator], None]]] = {
    "no": (
        tensors_come_back_as_they_were,
        memory_is_released,
        the_generator_goes_back_to_a_state,
        a_seed_repeats_random_numbers,
        ranks_exchange_tensors,
        loaders_serve_batches_on_the_device,
        training_has_the_numbers_of_the_cpu,
        accumulated_micro_batches_are_one_batch,
        gradients_are_clipped_to_the_norm_of_the_cpu,
        a_checkpoint_goes_on_bit_for_bit,
        a_model_on_the_meta_device_is_filled,
        sharded_training_has_the_numbers_of_the_cpu,
    ),
    "bf16": (half_precision_keeps_float32_masters,),
    "fp16": (half_precision_keeps_float32_masters, an_overflow_skips_the_step),
}
