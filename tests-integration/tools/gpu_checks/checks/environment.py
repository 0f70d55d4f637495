"""Which hardware and software is here, and that accel finds it."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version

import torch
from accel import Accelerator

from gpu_checks.check import Findings, Setup, Skipped

LIBRARIES = ("numpy", "accelerate", "lightning", "torchao", "pytest", "safetensors", "psutil", "click")


def run(setup: Setup, findings: Findings) -> None:
    """Notes versions and sizes, and computes a sum on the device that an Accelerator names."""
    facts = findings.facts
    facts |= {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count() or 0}
    facts["disk free, GiB"] = round(shutil.disk_usage(os.environ.get("TMPDIR", "/tmp")).free / 2**30)
    for name in LIBRARIES:
        facts[name] = _version(name)
    with findings.part("device"):
        device = Accelerator(cpu=setup.rehearsal).device
        assert device.type == setup.kind, f"accel's device is {device}, expected {setup.kind}"
        assert torch.ones(1000, device=device).sum().item() == 1000
        facts["device"] = str(device)
    with findings.part("GPU"):
        setup.need_cuda()
        if not torch.cuda.is_available():
            raise Skipped("torch finds no CUDA GPU")
        properties = torch.cuda.get_device_properties(0)
        facts["GPU"] = properties.name
        facts["GPUs"] = torch.cuda.device_count()
        facts["memory, GiB"] = round(properties.total_memory / 2**30, 1)
        facts["compute capability"] = f"{properties.major}.{properties.minor}"
        facts["CUDA"] = str(torch.version.cuda)
        facts["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call] # of torch


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
