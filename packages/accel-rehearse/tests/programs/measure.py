"""Runs a program as one of several real processes, and measures what it allocates and sends.

python measure.py memory|exchanges FOLDER SCRIPT [ARGUMENTS]
"""

import json
import os
import runpy
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accel import Accelerator
from accel.data_loader import DataLoaderShard
from accel.optimizer import AcceleratedOptimizer
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

torchs: Any = distributed_c10d  # of which torch has given no types
#: seconds after the end of an exchange in which a thread of gloo gives back its tensors: the profiler does not see that
#: a thread frees memory, and would take it as held until the end
PAUSE_S = 0.02
#: operations whose kernels take room for packed copies of their matrices, and give it back: how much depends on the
#: processor and its threads, and no device does so
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
WHOLE = {"_allgather_base_": 0, "_reduce_scatter_base_": 1, "allgather_": 0}


class Sent(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """What is sent."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self.log: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = func._schema.name.partition("::")[2]
        if func.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves(args[WHOLE.get(name, 0)]) if isinstance(leaf, torch.Tensor)]
            self.log.append((name, sum(tensor.nbytes for tensor in tensors)))
        elif func.namespace == "_c10d_functional" and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            size = args[0].nbytes * (args[1] if name == "all_gather_into_tensor" else 1)
            self.log.append((name, size))
        return func(*args, **(kwargs or {}))


class Patient(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """What waits for the end of each exchange, however late the others come, and a little longer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        # a message of one rank to another returns no tensors, and may wait for what is sent next
        if func.namespace == "c10d" and isinstance(out, tuple):
            torchs.Work.unbox(out[-1]).wait()
        elif func.namespace == "_c10d_functional":
            torch.ops._c10d_functional.wait_tensor(out)
        else:
            return out
        time.sleep(PAUSE_S)
        return out


class Watch:
    """What an Accelerator prepares, what its loaders serve, and the steps of its optimizers."""

    def __init__(self, sent: Sent | None) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.gradients: dict[int, int] = {}
        self.steps: list[tuple[int, int]] = []
        self.rates: list[float] = []
        self.passes = 0
        self.samples: list[list[int]] = []
        self.sent = sent

    def prepared(self, accelerator: Accelerator, ready: object) -> None:
        if isinstance(ready, nn.Module):
            self.models.append(ready)
        if isinstance(ready, AcceleratedOptimizer):
            self.optimizers.append(ready.optimizer)
            ready.optimizer.register_step_pre_hook(self.before)
            ready.optimizer.register_step_post_hook(self.after)

    def loss(self, loss: torch.Tensor, weight: object) -> None:
        pass

    def before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.gradients[id(optimizer)] = size([p.grad for group in optimizer.param_groups for p in group["params"]])

    def after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.steps.append((len(self.sent.log) if self.sent is not None else 0, len(self.samples)))
        self.rates.append(optimizer.param_groups[0]["lr"])

    def serving(self, iterate: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        """Return the `__iter__` of loaders of which all samples are noted."""

        def serve(loader: Any) -> Iterator[Any]:
            self.passes += 1
            for batch in iterate(loader):
                self.samples.append([zlib.crc32(sample.numpy().tobytes()) for sample in tree_leaves(batch)[0]])
                yield batch

        return serve


def size(tensors: Any) -> int:
    """Return the bytes of tensors on this rank."""
    total = 0
    for tensor in {id(one): one for one in tensors if isinstance(one, torch.Tensor)}.values():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        total += local.numel() * local.element_size()
    return total


def peak_of(profiler: Any) -> int:
    """Return the most bytes that the allocator of the CPU had given out, other than for packed copies."""
    events, stack = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.typed[0] == torch._C._profiler._EventType.Allocation and not of_product(event):
            events.append((event.start_time_ns, event.typed[1].alloc_size))
    now = most = 0
    for _, change in sorted(events, key=lambda one: one[0]):
        now += change
        most = max(most, now)
    return most


def of_product(event: Any) -> bool:
    """Return whether the kernel of a product of matrices both takes and frees this memory by itself."""
    product = event.parent
    if product is None or product.name not in PRODUCTS:
        return False
    own = [one.typed[1] for one in product.children if one.typed[0] == event.typed[0]]
    kept: int = sum(one.alloc_size for one in own if one.ptr == event.typed[1].ptr)
    return kept == 0


def main() -> None:
    mode, folder, script, *rest = sys.argv[1:]
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).parent)
    sent = Sent() if mode == "exchanges" else None
    watch = Watch(sent)
    Accelerator.observer = watch
    DataLoaderShard.__iter__ = watch.serving(DataLoaderShard.__iter__)  # type: ignore[method-assign] # to watch it
    profiler: Any = torch.profiler.profile(profile_memory=True) if sent is None else nullcontext()
    with profiler, sent or Patient():  # type: ignore[no-untyped-call] # of torch
        globals_of = runpy.run_path(script, run_name="__main__")
    del globals_of
    rank = int(os.environ.get("RANK", "0"))
    optimizers = max(len(watch.optimizers), 1)
    ends = watch.steps[optimizers - 1 :: optimizers]
    found: dict[str, Any] = {
        "parameters_bytes": size(p for model in watch.models for p in model.parameters()),
        "gradients_bytes": sum(watch.gradients.values()),
        "optimizer_bytes": size(v for o in watch.optimizers for s in o.state.values() for v in s.values()),
    }
    if sent is None:
        found["peak_bytes"] = peak_of(profiler)
    else:
        (begin, first), (end, last) = ends[1:3]
        log = sent.log[begin:end]
        found["exchanges"] = [
            [name, sum(one == name for one, _ in log), sum(count for one, count in log if one == name)]
            for name in sorted({name for name, _ in log})
        ]
        found["samples"] = [sample for batch in watch.samples[first:last] for sample in batch]
        found["steps_per_epoch"] = len(ends) / watch.passes
        rates = [*watch.rates, *(group["lr"] for one in watch.optimizers[:1] for group in one.param_groups)]
        found["schedule_ends_at_step"] = rates.index(0.0) if 0.0 in rates else None
    (Path(folder) / f"{mode}-{rank}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.barrier()


if __name__ == "__main__":
    main()
