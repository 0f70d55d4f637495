"""Exchanges through NCCL, in a process group of one: the calls, the dtypes and the waits, if not the wire."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from accel_comm.transports.torch_dist import TorchDist
from accel_state.devices import choose
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from gpu_checks.check import Findings, Setup
from gpu_checks.training import perceptron

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


def run(setup: Setup, findings: Findings) -> None:
    """Opens the group as accel does, and gives each exchange numbers whose result is known."""
    hardware = choose(cpu=setup.rehearsal)
    device, backend = hardware.place(0), hardware.group_backend
    store = FileStore(str(Path(tempfile.mkdtemp()) / "store"), 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    findings.facts["backend"] = backend
    try:
        transport = TorchDist()
        for dtype in DTYPES:
            with findings.part(f"gather and broadcast {str(dtype).removeprefix('torch.')}"):
                numbers = (torch.arange(12, device=device).reshape(3, 4) % 2).to(dtype)
                # the transport itself: accel_ops leave out what a process that is alone would send itself
                for arrived in (transport.all_gather(numbers.T), transport.broadcast(numbers.T, 0)):
                    assert arrived.device == device
                    assert torch.equal(arrived, numbers.T)
        with findings.part("reduce"):
            numbers = torch.tensor([1.0, float("nan"), -3.0], device=device)
            for how in ("sum", "mean", "max", "min"):
                result = transport.all_reduce(numbers, how)
                assert torch.equal(result.isnan(), numbers.isnan()), (how, result)
                assert torch.equal(result.nan_to_num(), numbers.nan_to_num()), (how, result)
        with findings.part("objects"):
            assert transport.exchange("words", b"words") == [b"words"]
            assert transport.send("more words", b"words" * 10_000, 0) == b"words" * 10_000
            (letter,) = transport.all_gather_objects({"x": torch.arange(3, device=device)}, "a tensor")
            assert torch.equal(letter["x"].cpu(), torch.arange(3))
        with findings.part("host tensors"):
            host = torch.arange(3, device="cpu")
            assert torch.equal(transport.all_gather(host), host)
        for name, hook in {"DDP": None, "DDP, bf16 gradients": default_hooks.bf16_compress_hook}.items():
            with findings.part(name):
                if hook is not None:
                    setup.need_cuda()  # without CUDA torch refuses its own hook
                _train(perceptron().to(device), device, hook)
        transport.close()
    finally:
        dist.destroy_process_group()


def _train(model: nn.Module, device: torch.device, hook: object) -> None:
    container = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device])
    if hook is not None:
        container.register_comm_hook(None, hook)  # type: ignore[arg-type] # no state is needed
    inputs = torch.randn(8, 64, device=device)
    container(inputs).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
