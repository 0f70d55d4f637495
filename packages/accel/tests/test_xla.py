"""What is XLA's own: what is compiled, when it runs, and when shapes change; with --device=xla only."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, DataLoaderConfiguration, DistributedType
from accel_state import release
from accel_testing import stretched
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

Accelerate = Callable[..., Accelerator]


@pytest.fixture(autouse=True)
def xla(device: torch.device) -> None:
    """Skips the test on other devices, and forgets what was compiled and counted before."""
    if device.type != "xla":
        pytest.skip("needs --device=xla, and torch_xla with the torch that it was built for")
    settled()
    library("debug.metrics").clear_all()


@pytest.fixture
def accelerate(xla: None) -> Iterator[Accelerate]:
    """Makes Accelerators."""
    yield Accelerator
    release()


def library(name: str) -> Any:
    # by name, as a type checker stops at an import of torch_xla
    return import_module(f"torch_xla.{name}")


def settled() -> None:
    import_module("torch_xla").sync(wait=True)
    library("core.xla_model").wait_device_ops()


def counts() -> tuple[int, int]:
    """Compilations and executions of graphs, so far."""
    library("core.xla_model").wait_device_ops()
    found = [library("debug.metrics").metric_data(name) for name in ("CompileTime", "ExecuteTime")]
    compilations, executions = (0 if one is None else int(one[0]) for one in found)
    return compilations, executions


def collected(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor are still to be computed."""
    return "aten::" in import_module("torch_xla")._XLAC._get_xla_tensors_text([tensor])


def model_of(width: int) -> nn.Module:
    """Each test takes a width of its own, as what was compiled for an earlier test is not compiled again."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))


def data(width: int, samples: int = 24) -> TensorDataset:
    return TensorDataset(torch.randn(samples, width, generator=torch.Generator().manual_seed(3)))


def trained(accelerator: Accelerator, make: Any, width: int, samples: int = 24, *, average: bool = False) -> Any:
    """Compilations and executions after each micro-batch of two epochs."""
    model = model_of(width)
    optimizer: Optimizer = make(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(width, samples), batch_size=4))
    seen, total = [], torch.zeros((), device=accelerator.device)
    for _ in range(2):
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                loss = model(inputs).square().mean()
                accelerator.backward(loss)
                if average:
                    total += loss.detach()
                optimizer.step()
                optimizer.zero_grad()
            seen.append(counts())
    return seen


@pytest.mark.parametrize(("make", "width"), [(SGD, 16), (AdamW, 17)])
def test_nothing_is_compiled_after_the_second_step(accelerate: Accelerate, make: Any, width: int) -> None:
    """S115: with static shapes; a step is one graph."""
    seen = trained(accelerate(), make, width)
    assert len(seen) == 12
    assert 1 <= seen[0][0] <= seen[1][0] == seen[-1][0] <= 2
    executions = [count for _, count in seen]
    assert [later - before for before, later in pairwise(executions[1:])] == [1] * 10


def test_a_running_average_of_losses_is_compiled_once(accelerate: Accelerate) -> None:
    """S115."""
    seen = trained(accelerate(), SGD, 18, average=True)
    assert seen[2][0] == seen[-1][0]


def test_the_graph_is_cut_at_the_optimizer_step_and_not_in_between(accelerate: Accelerate) -> None:
    """S98, S115: two micro-batches are one graph, with its exchange of gradients and its step."""
    seen = trained(accelerate(gradient_accumulation_steps=2), SGD, 19)
    assert seen[3][0] == seen[-1][0]
    windows = [(0, *seen)[first : first + 2] for first in range(1, 13, 2)]
    executions = [(inside[1], after[1]) for inside, after in windows]
    assert [after - inside for inside, after in executions] == [1] * 6, "the step runs what was collected"
    gaps = [later[0] - before[1] for before, later in pairwise(executions)]
    assert gaps == [0] * 5, "nothing runs between the micro-batches of a window"


def test_losses_with_weights_are_compiled_once(accelerate: Accelerate) -> None:
    """S115: whatever the weights are."""
    accelerator, model = accelerate(), model_of(20)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    seen = []
    for step in range(6):
        accelerator.backward(model(torch.ones(4, 20, device=accelerator.device)).sum(), weight=3 + step)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(counts()[0])
    assert seen[1] == seen[-1]


def test_a_step_runs_what_was_collected(accelerate: Accelerate) -> None:
    """S115: parameters are numbers after the step, not operations that wait."""
    accelerator, model = accelerate(), model_of(21)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    loss = model(torch.ones(4, 21, device=accelerator.device)).sum()
    assert collected(loss)
    accelerator.backward(loss)
    optimizer.step()
    assert not collected(loss)
    assert not any(collected(one) for one in model.parameters())


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_evaluation_is_one_graph_a_batch(accelerate: Accelerate, accumulation: int) -> None:
    """S115: also where the script reads no number before the end."""
    accelerator = accelerate(gradient_accumulation_steps=accumulation)
    model, loader = accelerator.prepare(model_of(22 + accumulation), DataLoader(data(22 + accumulation), batch_size=4))
    settled()
    before, outputs = counts(), []
    with torch.no_grad():
        for (inputs,) in loader:
            outputs.append(accelerator.gather_for_metrics(model(inputs)))
    after = counts()
    assert (after[0] - before[0], after[1] - before[1]) == (1, 6)
    assert not any(collected(one) for one in outputs)


def test_changing_shapes_are_warned_of_once_with_both(accelerate: Accelerate) -> None:
    """S116: a short last batch, in each of three epochs."""
    loader = accelerate().prepare(DataLoader(data(3, 10), batch_size=4))
    expected = r"batches on XLA change their shapes: batch\[0\] was \[4, 3\] and is \[2, 3\]. .*drop_last=True"
    with pytest.warns(UserWarning, match=expected) as warned:
        assert [len(list(loader)) for _ in range(3)] == [3, 3, 3]
    assert [one.filename for one in warned] == [__file__], "once, and it points at the script"


def test_a_tensor_that_comes_or_goes_is_a_change_too(accelerate: Accelerate) -> None:
    """S116: named by its key."""
    rows: Any = [{"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(3)}]
    loader = accelerate().prepare(DataLoader(rows, batch_size=1))
    with pytest.warns(UserWarning, match=r"batch\['b'\] was not there and is \[1, 3\]"):
        list(loader)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_equal_shapes_are_not_warned_of(accelerate: Accelerate, non_blocking: bool) -> None:
    """S116: two loaders may differ, as an epoch and an evaluation do."""
    accelerator = accelerate(dataloader_config=DataLoaderConfiguration(non_blocking=non_blocking))
    loaders = accelerator.prepare(DataLoader(data(3, 8), batch_size=4), DataLoader(data(5, 9), batch_size=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(list(one)) for one in (*loaders, *loaders)] == [2, 3, 2, 3]


@pytest.mark.parametrize("static", [True, False])
def test_a_script_may_pad_to_one_length_on_tpus(accelerate: Accelerate, static: bool) -> None:
    """S26, S117: the branch that Accelerate's guide shows; without it each length is compiled."""
    accelerator, model = accelerate(), model_of(1)
    assert accelerator.distributed_type is DistributedType["XLA"] is DistributedType["TPU"]
    longest = 9 if static and accelerator.distributed_type == DistributedType.TPU else None

    def padded(texts: list[Tensor]) -> Tensor:
        length = longest or max(len(text) for text in texts)
        return torch.stack([nn.functional.pad(text, (0, length - len(text))) for text in texts])

    texts: Any = [torch.ones(length) for length in range(2, 10)]
    model, optimizer, loader = accelerator.prepare(
        model, SGD(model.parameters(), lr=0.1), DataLoader(texts, batch_size=2, collate_fn=padded)
    )
    seen = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for inputs in loader:
            accelerator.backward(model(inputs.unsqueeze(-1)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            seen.append(counts()[0])
    assert (seen[1] == seen[-1]) == static
    assert len(warned) == (not static)


def test_processes_that_the_runtime_does_not_connect_are_refused(tmp_path: Path) -> None:
    """S4: without it each would train alone; two processes are started."""
    script = tmp_path / "train.py"
    script.write_text("from accel import Accelerator\nAccelerator()\nprint('trained')\n")
    command = [sys.executable, "-m", "accel", "launch", "-n", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(300), check=False)
    assert done.returncode
    assert "trained" not in done.stdout
    words = r"XLA in a job of 2 \(launcher: accel launch\): on rank [01] the runtime of torch_xla connects 1, "
    assert re.search(words, done.stderr), done.stderr


#: a client for the CPU connects no processes: gloo carries what the runtime of a TPU would
JOB = """
import json, os, sys
from importlib import import_module

import torch
from accel import Accelerator, DataLoaderConfiguration
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

folder, every, dispatch = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "dispatch"
xm, runtime = import_module("torch_xla.core.xla_model"), import_module("torch_xla.runtime")
metrics, of_runtime = import_module("torch_xla.debug.metrics"), xm.all_reduce
processes = int(os.environ.get("WORLD_SIZE", "1"))


def by_gloo(kind, x, pin_layout):
    held = x.cpu()
    distributed.all_reduce(held, getattr(distributed.ReduceOp, kind.upper()))
    return held.to(x.device)


runtime.world_size, xm.all_reduce = lambda: processes, by_gloo
loading = DataLoaderConfiguration(dispatch_batches=dispatch)
accelerator = Accelerator(gradient_accumulation_steps=every, dataloader_config=loading)
rank, on_device = accelerator.process_index, {"device": accelerator.device}
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
rows = torch.randn(48, 6, generator=torch.Generator().manual_seed(3))
loader = DataLoader(TensorDataset(rows), batch_size=8 // processes)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def train(seen):
    for (inputs,) in loader:
        with accelerator.accumulate(model):
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        seen(loss.detach())


def losses():
    found = []
    train(lambda loss: found.append(accelerator.reduce(loss, "mean").item()))
    return found


def counts(loss):
    xm.wait_device_ops()
    metric = [metrics.metric_data(name) for name in ("CompileTime", "ExecuteTime", "TransferFromDeviceTime")]
    counted.append([one[0] for one in metric])


before = losses()
accelerator.save_state(folder)
after = losses()
accelerator.load_state(folder)
told = {"losses": [before, after], "again": losses(), "processes": accelerator.num_processes}
told["gathered"] = accelerator.gather(torch.tensor([rank, 7], **on_device)).tolist()
told["truths"] = accelerator.gather(torch.tensor([rank == 1], **on_device)).tolist()
with accelerator.no_sync(model):
    accelerator.backward(model(torch.full((1, 6), 1.0 + rank, **on_device)).sum())
told["kept"] = len(set(accelerator.gather(model[0].weight.grad[0, :1]).tolist()))
optimizer.zero_grad()
counted, xm.all_reduce = [], of_runtime
train(counts)
told["counted"] = counted
if accelerator.is_main_process:
    print("told:" + json.dumps(told))
"""


def told_by(folder: Path, every: int, loading: str, *launcher: str) -> dict[str, Any]:
    script = folder / "job.py"
    script.write_text(JOB)
    command = [sys.executable, *launcher, str(script), str(folder / f"state-{len(launcher)}"), str(every), loading]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=stretched(400), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("told:")]
    told: dict[str, Any] = json.loads(line.removeprefix("told:"))
    return told


@pytest.mark.parametrize(
    ("launcher", "every", "loading"),
    [
        (["-m", "accel", "launch", "-n", "2"], 1, "shard"),
        (["-m", "torch.distributed.run", "--nproc-per-node", "2"], 2, "dispatch"),
    ],
    ids=["accel launch", "torchrun"],
)
def test_two_processes_train_as_one(tmp_path: Path, launcher: list[str], every: int, loading: str) -> None:
    """S4, S115: saved and resumed, with weights of rank 0; a step is one graph, which has its exchange too."""
    wanted, found = told_by(tmp_path, every, loading), told_by(tmp_path, every, loading, *launcher)
    assert (wanted["processes"], found["processes"]) == (1, 2)
    assert found["losses"] == [pytest.approx(losses, rel=1e-6) for losses in wanted["losses"]]
    assert found["again"] == pytest.approx(wanted["losses"][1], rel=1e-6)
    assert found["gathered"] == [0, 7, 1, 7]
    assert found["truths"] == [False, True]
    assert found["kept"] == 2, "gradients of no_sync stay on their rank"
    steps = found["counted"][2 * every - 1 :: every]
    assert steps[0][0] == steps[-1][0], "nothing is compiled after the second step"
    assert [after[1] - before[1] for before, after in pairwise(steps)] == [1] * (len(steps) - 1)
    assert steps[0][2] == steps[-1][2], "the host reads nothing"
