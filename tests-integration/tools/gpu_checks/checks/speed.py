"""Step time and memory of accel, Accelerate, Fabric and a loop by hand; the speed of saving and loading."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from gpu_checks.check import Findings, Setup, Skipped
from gpu_checks.contestants import CONTESTANTS, Contestant
from gpu_checks.training import CLASSES, perceptron

WARM_UP = 3
Make = Callable[[Setup], tuple[nn.Module, list[tuple[Tensor, Tensor]]]]


class Language(nn.Module):
    """Guesses words by a stack of transformer layers; 24 layers of width 1024 have 300 million parameters."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        heads = max(1, width // 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape: (batch, tokens) -> (batch * tokens, words)."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(x)
        return scores.flatten(0, 1)


def run(setup: Setup, findings: Findings) -> None:
    """Measures the contestants in turn, a few rounds each, and then the disk."""
    rounds = setup.size(5, 1)
    with findings.part("small model"):
        _measured(setup, findings, "small model", "no", _small, rounds, setup.size(300, 3))
    with findings.part("language model"):
        _measured(setup, findings, "language model", "bf16", _language, max(1, rounds // 2), setup.size(12, 2))
    with findings.part("checkpoint"):
        _saved(setup, findings)


def _small(setup: Setup) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    model, device = perceptron(), torch.device(setup.kind)
    return model, [(torch.randn(32, 64, device=device), torch.randint(CLASSES, (32,), device=device))]


def _language(setup: Setup) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    words, tokens = setup.size(32_000, 50), setup.size(512, 8)
    torch.manual_seed(0)
    model = Language(words, setup.size(1024, 32), setup.size(24, 2))
    inputs = torch.randint(words, (setup.size(8, 2), tokens), device=setup.kind)
    return model, [(inputs, inputs.flatten())]


def _measured(
    setup: Setup,
    findings: Findings,
    name: str,
    precision: str,
    make: Make,
    rounds: int,
    steps: int,
) -> None:
    seconds: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    absent: dict[str, str] = {}
    for _ in range(rounds):
        for who, contestant in CONTESTANTS.items():
            if who in absent:
                continue
            try:
                took, peak = _once(setup, contestant, precision, make, steps)
            except Skipped as why:
                absent[who] = str(why)
                continue
            seconds.setdefault(who, []).append(took)
            memory[who] = peak
    base = median(seconds["by hand"])
    findings.facts[name] = f"{1e3 * base:.3g} ms a step by hand"
    for who in CONTESTANTS:
        if who in absent:
            findings.facts[f"{name}, {who}"] = f"skipped: {absent[who]}"
            continue
        told = "" if setup.rehearsal else f", {memory[who]:.2f} GiB at most"
        findings.facts[f"{name}, {who}"] = f"{median(seconds[who]) / base:.3f} of it{told}"


def _once(setup: Setup, contestant: Contestant, precision: str, make: Make, steps: int) -> tuple[float, float]:
    """Seconds of a step of a new model, and GiB at the peak."""
    _clean(setup)
    model, data = make(setup)
    model = model.to(setup.kind)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    step = contestant(model, optimizer, precision, setup.rehearsal)
    took = _seconds_of_step(setup, step, data, steps)
    return took, 0.0 if setup.rehearsal else torch.cuda.max_memory_allocated() / 2**30


def _seconds_of_step(setup: Setup, step: Callable[[Tensor, Tensor], None], data: list[Any], steps: int) -> float:
    for number in range(WARM_UP):
        step(*data[number % len(data)])
    _synchronise(setup)
    began = perf_counter()
    for number in range(steps):
        step(*data[number % len(data)])
    _synchronise(setup)
    return (perf_counter() - began) / steps


def _saved(setup: Setup, findings: Findings) -> None:
    """A checkpoint of 4 GB through accel, and the same tensors through torch.save."""
    from accel import Accelerator
    from accel_state import release

    release()
    accelerator = Accelerator(cpu=setup.rehearsal)
    model = perceptron(setup.size(4096, 64), setup.size(20, 2)).to(accelerator.device)
    prepared, optimizer = accelerator.prepare(model, AdamW(model.parameters()))
    cross_entropy(
        prepared(torch.randn(2, setup.size(4096, 64), device=accelerator.device)),
        torch.zeros(2, dtype=torch.int64, device=accelerator.device),
    ).backward()  # type: ignore[no-untyped-call] # of torch
    optimizer.step()
    optimizer.zero_grad()
    with TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        began = perf_counter()
        accelerator.save_state(Path(folder) / "checkpoint")
        saved = perf_counter() - began
        size = sum(path.stat().st_size for path in (Path(folder) / "checkpoint").rglob("*") if path.is_file()) / 1e9
        began = perf_counter()
        accelerator.load_state(Path(folder) / "checkpoint")
        _synchronise(setup)
        loaded = perf_counter() - began
        began = perf_counter()
        torch.save([model.state_dict(), optimizer.state_dict()], Path(folder) / "plain.pt")
        plain = perf_counter() - began
    findings.facts["checkpoint"] = (
        f"{size:.3g} GB: saved at {size / saved:.3g} GB/s (torch.save {size / plain:.3g}),"
        f" loaded at {size / loaded:.3g} GB/s"
    )


def _clean(setup: Setup) -> None:
    gc.collect()
    if not setup.rehearsal:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _synchronise(setup: Setup) -> None:
    if not setup.rehearsal:
        torch.cuda.synchronize()
