"""Two ranks share one GPU by gloo, or have one each by NCCL: their numbers are those of one process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, DataLoaderConfiguration, InitProcessGroupKwargs, LocalSGD
from accel.utils import broadcast_object_list, gather_object
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, IterableDataset

from gpu_checks.check import Findings, Setup
from gpu_checks.ranks import Job, on_ranks
from gpu_checks.training import parameters_of, perceptron, samples

SIZE, BATCH, STEPS = 2, 8, 6
TOLERANCE = 1e-9  # float64: only the order of sums differs


def run(setup: Setup, findings: Findings) -> None:
    """Runs each job on both ranks; a pair of ranks that failed is followed by a fresh one for the jobs left."""
    left: list[Job] = [gathers, reduces, objects, trains, steps_locally, dispatches, saves]
    while left:
        with tempfile.TemporaryDirectory() as folder:
            answers = on_ranks(left, setup, folder, size=SIZE)
        for name, of_ranks in answers.items():
            with findings.part(name):
                failures = [f"rank {rank}: {a.failure}" for rank, a in enumerate(of_ranks) if a.failure is not None]
                assert not failures, "\n".join(failures)
                findings.facts[name] = str(of_ranks[0].result)
        left = left[len(answers) :]


def accelerator_of(setup: Setup, **settings: Any) -> Accelerator:
    """An Accelerator; if there is one GPU, both ranks share it on purpose."""
    handlers = [] if torch.cuda.device_count() >= SIZE else [InitProcessGroupKwargs(backend="gloo")]
    return Accelerator(cpu=setup.rehearsal, kwargs_handlers=handlers, **settings)


def gathers(setup: Setup, folder: str) -> str:
    """Tensors of several dtypes, on the device and on the host, and of unequal lengths."""
    accelerator = accelerator_of(setup)
    rank, device = accelerator.process_index, accelerator.device
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool):
        mine = torch.full((2, 3), rank, device=device).to(dtype)
        expected = torch.cat([torch.zeros(2, 3), torch.ones(2, 3)]).to(device=device, dtype=dtype)
        assert torch.equal(accelerator.gather(mine), expected), dtype
    assert accelerator.gather(torch.tensor([rank], device="cpu")).tolist() == [0, 1]
    ragged = torch.full((rank + 1,), float(rank), device=device)
    padded = accelerator.gather(accelerator.pad_across_processes(ragged, pad_index=-1))
    assert padded.tolist() == [0.0, -1.0, 1.0, 1.0]
    return f"equal, on {device} by {torch.distributed.get_backend()}"


def reduces(setup: Setup, folder: str) -> str:
    """Sums, means and extremes, with a number that is none."""
    accelerator = accelerator_of(setup)
    for count in (2, 100_000):  # few numbers of the CPU travel by another way
        mine = torch.full((count,), accelerator.process_index + 1.0, device=accelerator.device)
        mine[-1] = float("nan") if accelerator.process_index == 0 else 1.0
        for how, expected in {"sum": 3.0, "mean": 1.5, "max": 2.0, "min": 1.0}.items():
            result = accelerator.reduce(mine, how)  # type: ignore[arg-type] # how is one of its words
            assert result[:-1].eq(expected).all(), (how, count, result)
            assert result[-1].isnan(), (how, count, result)
    return "equal"


def objects(setup: Setup, folder: str) -> str:
    """Objects with tensors of the device inside, which arrive on the device of the process that receives them."""
    accelerator = accelerator_of(setup)
    rank, device = accelerator.process_index, accelerator.device
    gathered = gather_object([{"rank": rank, "x": torch.tensor([float(rank)], device=device)}])
    assert [entry["rank"] for entry in gathered] == [0, 1]
    assert [entry["x"].item() for entry in gathered] == [0.0, 1.0]
    places = {str(entry["x"].device) for entry in gathered}
    assert places == {str(device)}, f"tensors inside objects arrived on {places}, and this process is on {device}"
    (sent,) = broadcast_object_list([torch.arange(3, device=device) if rank == 0 else None])
    assert sent.tolist() == [0, 1, 2]
    return f"equal, on {device}"


def _trained(accelerator: Accelerator | None, device: torch.device, batch: int) -> list[Tensor]:
    """The weights after a pass, with accel or by hand."""
    bare = perceptron().double().to(device)
    model: Any = bare
    optimizer: Any = SGD(bare.parameters(), lr=0.1, momentum=0.9)
    loader: Any = DataLoader(samples(STEPS * SIZE * BATCH), batch)
    if accelerator is not None:
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        loss = cross_entropy(model(inputs.to(device).double()), targets.to(device))
        if accelerator is None:
            loss.backward()  # type: ignore[no-untyped-call] # of torch
        else:
            accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return parameters_of(bare)


def trains(setup: Setup, folder: str) -> str:
    """Two ranks with half a batch each, against one process with all of it."""
    accelerator = accelerator_of(setup)
    ours, hand = _trained(accelerator, accelerator.device, BATCH), _trained(None, accelerator.device, SIZE * BATCH)
    worst = max((mine - theirs).abs().max().item() for mine, theirs in zip(ours, hand, strict=True))
    assert worst <= TOLERANCE, f"weights differ by {worst:.2g} from those of one process"
    return f"DDP, weights within {worst:.1g} of one process"


def steps_locally(setup: Setup, folder: str) -> str:
    """LocalSGD: ranks that step by themselves end with the same weights."""
    accelerator = accelerator_of(setup)
    bare = perceptron()
    model, optimizer = accelerator.prepare(bare, SGD(bare.parameters(), lr=0.1, momentum=0.9))
    loader = accelerator.prepare(DataLoader(samples(STEPS * SIZE * BATCH), BATCH))
    with LocalSGD(accelerator, model, local_sgd_steps=2) as local:
        for inputs, targets in loader:
            accelerator.backward(cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            local.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in bare.parameters()])
    first, second = accelerator.gather(weights.unsqueeze(0))
    assert torch.equal(first, second), "the ranks have unequal weights"
    momentum = torch.cat([state["momentum_buffer"].flatten() for state in optimizer.state.values()])
    assert momentum.device == accelerator.device, momentum.device
    first, second = accelerator.gather(momentum.unsqueeze(0))
    assert torch.equal(first, second), "the ranks have unequal momenta"
    return "equal weights and momenta"


class Numbers(IterableDataset[Tensor]):
    """The numbers from 0 on, as tensors."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(STEPS * SIZE * BATCH, dtype=torch.float32, device="cpu"))


def dispatches(setup: Setup, folder: str) -> str:
    """A stream that rank 0 reads for both: batches that fit into a message, and those that are sent from its device."""
    accelerator = accelerator_of(setup, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    for width in (1, 50_000):
        seen = []
        collate = partial(wide, width)
        for batch in accelerator.prepare(DataLoader(Numbers(), BATCH, collate_fn=collate)):
            assert batch.device == accelerator.device, batch.device
            assert (batch == batch[:, :1]).all()
            seen += accelerator.gather(batch[:, 0]).tolist()
        assert sorted(seen) == list(range(STEPS * SIZE * BATCH)), seen
    return f"{len(seen)} samples, each once"


def wide(width: int, samples: list[Tensor]) -> Tensor:
    """Each sample `width` times in a row."""
    return torch.stack(samples).unsqueeze(1).repeat(1, width)


def saves(setup: Setup, folder: str) -> str:
    """A checkpoint of both, loaded into a model with other numbers."""
    accelerator = accelerator_of(setup)
    bare = perceptron()
    accelerator.prepare(bare, SGD(bare.parameters(), lr=0.1, momentum=0.9))
    before = parameters_of(bare)
    accelerator.save_state(Path(folder) / "checkpoint", asynchronous=True)
    with torch.no_grad():
        for parameter in bare.parameters():
            parameter.zero_()
    accelerator.wait_for_checkpoint()
    accelerator.load_state(Path(folder) / "checkpoint")
    assert all(torch.equal(mine, saved) for mine, saved in zip(parameters_of(bare), before, strict=True))
    return "equal"
