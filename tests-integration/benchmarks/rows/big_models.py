"""A model of 500 MB like a language model: loaded, and run while its weights are on disk; one thread."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import nn

from benchmarks.row import Lineup, Repetition, Row, Skipped, Unit

WIDTH, BLOCKS, WORDS = 1024, 9, 4000
#: what accel may hold beside the largest part that is brought at once: less than two blocks of 56 MB
ALLOWED = 64_000_000
STATUS = Path("/proc/self/status")
#: the folders of the weights; they go with their process
_KEPT: list[TemporaryDirectory[str]] = []


class Block(nn.Module):
    """Attention and a gated layer, with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.queries = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.queries(self.norm(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(query, key, value))
        gated: torch.Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return x + gated


class Model(nn.Sequential):
    """Nine blocks between an embedding and a head."""

    def __init__(self) -> None:
        ends = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        super().__init__(ends[0], *(Block() for _ in range(BLOCKS)), ends[1])


def empty() -> Model:
    """The model without numbers."""
    with torch.device("meta"):
        return Model().eval()


def _weights() -> Path:
    """A file with weights for the model."""
    from safetensors.torch import save_file

    _KEPT.append(TemporaryDirectory())
    path = Path(_KEPT[-1].name) / "model.safetensors"
    save_file(Model().state_dict(), path, metadata={"format": "pt"})
    return path


def _copied(model: nn.Module, path: Path) -> None:
    from safetensors import safe_open

    held = dict(model.named_parameters())
    with torch.no_grad(), safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            held[name].copy_(file.get_tensor(name))


def _library(name: str) -> Any:
    if name == "accelerate":
        if find_spec("accelerate") is None:
            raise Skipped("pip install accelerate==1.15.0")
        import accelerate

        return accelerate
    import accel

    return accel


def _timed(work: Callable[[], object]) -> Repetition:
    def repeat() -> float:
        began = perf_counter()
        work()
        return perf_counter() - began

    return repeat


def _into_real_weights() -> Lineup:
    path, model = _weights(), Model()

    def theirs(name: str) -> Repetition:
        library = _library(name)
        return _timed(lambda: library.load_checkpoint_in_model(model, str(path)))

    makers = {name: partial(theirs, name) for name in ("accel", "accelerate")}
    return Lineup.of({"raw": lambda: _timed(lambda: _copied(model, path)), **makers})


def _from_meta() -> Lineup:
    path = _weights()

    def theirs(name: str) -> Repetition:
        library = _library(name)
        return _timed(lambda: library.load_checkpoint_in_model(empty(), str(path), device_map={"": "cpu"}))

    makers = {name: partial(theirs, name) for name in ("accel", "accelerate")}
    return Lineup.of({"raw": lambda: _timed(lambda: _copied(empty().to_empty(device="cpu"), path)), **makers})


def _dispatched(name: str, path: Path) -> nn.Module:
    more: dict[str, Any] = {"max_memory": {"cpu": ALLOWED}} if name == "accel" else {}
    model = empty()
    # Accelerate reads no file if all is on disk: the embedding is on the CPU
    places = {part: "disk" for part, _ in model.named_children()} | {"0": "cpu"}
    ready: nn.Module = _library(name).load_checkpoint_and_dispatch(
        model, str(path), device_map=places, offload_folder=str(path.parent / name), **more
    )
    return ready


def _forward(words: int) -> Lineup:
    path = _weights()
    ids = torch.arange(words)[None]

    def run(model: nn.Module) -> Repetition:
        @torch.inference_mode()
        def once() -> None:
            model(ids)

        return _timed(once)

    def read() -> None:
        held = bytearray(1 << 24)
        with path.open("rb", buffering=0) as file:
            while file.readinto(held):
                pass

    def raw() -> Repetition:
        whole = Model().eval()
        _copied(whole, path)
        compute, reading = run(whole), _timed(read)
        return lambda: max(compute(), reading())

    makers = {name: partial(lambda name: run(_dispatched(name, path)), name) for name in ("accel", "accelerate")}
    return Lineup.of({"raw": raw, **makers})


def _resident(kind: str) -> int:
    """Units: bytes."""
    found = re.search(rf"^{kind}:\s+(\d+) kB$", STATUS.read_text(), flags=re.MULTILINE)
    return int(found[1]) * 1024 if found is not None else 0


def grown(name: str, path: Path, answer: Connection) -> None:
    """Sends by how much the resident memory of this process grew at most, while a model on disk was run three times."""
    torch.set_num_threads(1)
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        small = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 8))
        # not counted: what torch loads at the first product and for modules on meta, and what the libraries import
        small(ids)
        empty()
        _ = _library(name).load_checkpoint_and_dispatch
        before = _resident("VmRSS")
        model = _dispatched(name, path)
        for _ in range(3):
            model(ids)
    answer.send(_resident("VmHWM") - before)


def _memory() -> Lineup:
    if not STATUS.exists():
        raise Skipped(f"resident memory is read from {STATUS}, which this system does not have")
    path = _weights()
    block = sum(parameter.nbytes for parameter in Block().parameters())

    def theirs(name: str) -> Repetition:
        _library(name)

        def repeat() -> float:
            context = get_context("spawn")
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=grown, args=(name, path, send))
            process.start()
            send.close()
            took: int = receive.recv()
            process.join()
            return float(took)

        return repeat

    makers = {name: partial(theirs, name) for name in ("accel", "accelerate")}
    return Lineup.of({"raw": lambda: lambda: float(ALLOWED + block), **makers})


_FEW: dict[str, Any] = {"least": 3, "most": 9, "warm_up": 1}
#: whom a forward is compared with, and how much of their time it may take
_BESIDE = (("Accelerate", "accelerate", 0.6), ("the longer half", "raw", 1.15))
ROWS = (
    Row("500 MB into real weights", _into_real_weights, 1.10, **_FEW),
    Row("500 MB into a model on meta", _from_meta, 1.10, **_FEW),
    *(
        Row(f"500 MB on disk, {words} words, beside {whom}", partial(_forward, words), target, against=against, **_FEW)
        for words in (1, 32)
        for whom, against, target in _BESIDE
    ),
    Row("500 MB on disk, memory", _memory, 1.0, unit=Unit.BYTES, least=3, most=3, warm_up=0),
)
