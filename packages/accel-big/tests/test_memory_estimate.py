"""What a model is said to take, against counts made by hand, real optimizers, and bert-base-cased."""

import json
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_big.estimate_options import DTYPES, STATES
from accel_big.estimate_report import report
from accel_big.estimate_text import human
from accel_big.memory_estimate import Estimate, estimate, measure_model, measure_weights
from accel_checkpoint import save_weights
from accel_state.errors import CannotRun
from estimates import told
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

Build = Callable[[], nn.Module]


def taken(model: nn.Module, dtype: str = "float32", optimizer: str = "adamw") -> Estimate:
    return estimate(measure_model(model, "it"), dtype, optimizer)


class With(nn.Module):
    """A module with what it is given, by name: modules, parameters, buffers."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)


class Block(With):
    """What a model that holds it says not to split."""


class Whole(With):
    """Says not to split blocks."""

    _no_split_modules = ("Block",)


def numbers(count: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.zeros(count, dtype=dtype))


def tied(how: str) -> nn.Module:
    inside, out = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
    out.weight = inside.weight if how == "one parameter" else nn.Parameter(inside.weight.data)
    return With(inside=inside, out=out)


def seen_twice() -> nn.Module:
    one = nn.Linear(2, 2)
    return With(one=one, view=one.weight.data)


def in_a_circle() -> nn.Module:
    one = With(own=numbers(2))
    one.add_module("again", With(back=one, more=numbers(3)))
    return one


def blocks(of: type[With]) -> nn.Module:
    return of(first=Block(a=nn.Linear(2, 2), b=nn.Linear(2, 2, bias=False)), last=nn.Linear(2, 2))


# total, gradients and largest layer in float32, in numbers of four bytes
SELF = "the model itself (With)"
BY_HAND: dict[str, tuple[Build, int, int, int, str]] = {
    "two layers": (lambda: nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5)), 325, 325, 220, "0 (Linear)"),
    "running statistics": (lambda: nn.BatchNorm1d(4), 18, 8, 18, "the model itself (BatchNorm1d)"),
    "tied": (lambda: tied("one parameter"), 21, 21, 21, "inside (Embedding)"),
    "tied by memory": (lambda: tied("one memory"), 21, 21, 21, "inside (Embedding)"),
    "shared module": (lambda: nn.Sequential(*[nn.Linear(2, 2)] * 3), 6, 6, 6, "0 (Linear)"),
    "buffer that is a parameter": (seen_twice, 6, 6, 6, "one (Linear)"),
    "circle": (in_a_circle, 5, 5, 3, "again (With)"),
    "no modules": (lambda: With(p=numbers(5), q=numbers(3), one=nn.Linear(2, 2)), 14, 14, 8, SELF),
    "nothing": (lambda: nn.Sequential(nn.ReLU()), 0, 0, 0, "none"),
    "no numbers": (lambda: With(p=numbers(0), q=numbers(0)), 0, 0, 0, SELF),
    "one number": (lambda: With(p=nn.Parameter(torch.tensor(1.0))), 1, 1, 1, SELF),
    "frozen": (lambda: nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1)), 25, 5, 20, "0 (Linear)"),
    "list": (lambda: With(own=numbers(2), many=nn.ParameterList([numbers(3), numbers(4)])), 9, 9, 9, SELF),
    "dict": (lambda: With(many=nn.ParameterDict({"a": numbers(3)})), 3, 3, 3, SELF),
    "attention": (lambda: With(one=nn.MultiheadAttention(4, 2)), 80, 80, 80, "one (MultiheadAttention)"),
    "parametrized": (lambda: With(one=weight_norm(nn.Linear(3, 2))), 10, 10, 10, "one (ParametrizedLinear)"),
    "blocks": (lambda: blocks(With), 16, 16, 6, "first.a (Linear)"),
    "blocks kept whole": (lambda: blocks(Whole), 16, 16, 10, "first (Block)"),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", BY_HAND)
def test_bytes_are_those_counted_by_hand(name: str, device: str) -> None:
    make, total, trained, largest, layer = BY_HAND[name]
    with torch.device(device):
        found = taken(make())
    expected = Estimate("float32", layer, 4 * largest, 4 * total, 4 * trained, 8 * trained, 0)
    assert asdict(found) | {"training_bytes": 0} == asdict(expected)
    assert found.training_bytes == 4 * (total + 3 * trained)


def test_a_dtype_changes_floats_and_leaves_integers_and_complex_numbers() -> None:
    model = With(norm=nn.BatchNorm1d(4), wave=numbers(3, torch.complex64))
    # 16 floats, a counter of 8 bytes, 3 complex numbers of 8 bytes
    totals = {name: taken(model, name).total_bytes for name in DTYPES}
    floats = {"float64": 128, "float32": 64, "bfloat16": 32, "float16": 32, "float8": 16, "int8": 16, "int4": 8}
    assert totals == {name: size + 8 + 24 for name, size in floats.items()}


def test_half_bytes_are_rounded_up_for_each_tensor() -> None:
    assert taken(nn.Linear(3, 1), "int4").total_bytes == 2 + 1


def test_nothing_is_trained_in_8_bits_or_less() -> None:
    for name, bits in DTYPES.items():
        found = taken(nn.Linear(2, 2), name)
        assert [found.gradients_bytes, found.optimizer_state_bytes, found.training_bytes] == (
            [None] * 3 if bits < 16 else [6 * bits // 8, 12 * bits // 8, 24 * bits // 8]
        )


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_state_is_what_torch_keeps(name: str, dtype: str) -> None:
    model = nn.Linear(8, 4).to(getattr(torch, dtype))
    classes = {one.lower(): getattr(torch.optim, one) for one in dir(torch.optim) if isinstance(one, str)}
    settings = {"momentum": 0.9} if name == "sgd_momentum" else {}
    optimizer = classes[name.removesuffix("_momentum")](model.parameters(), lr=0.1, **settings)
    model(torch.ones(1, 8, dtype=getattr(torch, dtype))).sum().backward()
    optimizer.step()
    kept = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    kept_bytes = sum(one.nbytes for one in kept if isinstance(one, torch.Tensor) and one.ndim)
    assert taken(model, dtype, name).optimizer_state_bytes == kept_bytes


def test_bert_base_cased_takes_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)

    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    # kernels by name would be downloaded and run
    config = {"model_type": "bert", "vocab_size": 28996, "_attn_implementation": "somebody/kernels"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = json.loads(report(str(tmp_path), dtypes=["fp32", "float16"], optimizer="adam", form="json"))
    full, half = found["dtypes"]
    assert found["parameters"] == 108_310_272
    assert full["total_bytes"] == 433_249_280
    assert (full["largest_layer"], full["largest_layer_bytes"]) == ("embeddings (BertEmbeddings)", 90_669_056)
    # two buffers of 512 integers have no gradients, and do not shrink
    assert full["training_bytes"] == 4 * full["total_bytes"] - 3 * 2 * 512 * 8
    assert half["total_bytes"] == (433_249_280 - 8192) // 2 + 8192


def test_the_class_that_a_config_names_is_built_with_tied_weights_once(tmp_path: Path) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 50}
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    # its file is as good as its folder
    text = told(tmp_path / "config.json", "json")
    block = 2 * 16 + (8 * 24 + 24) + (8 * 8 + 8) + (8 * 32 + 32) + (32 * 8 + 8)
    assert json.loads(text)["parameters"] == 50 * 8 + 16 * 8 + block + 16
    assert "GPT2LMHeadModel" in json.loads(text)["model"]


def test_a_model_of_no_size_at_all_is_built_without_memory() -> None:
    with torch.device("meta"):
        assert taken(nn.Linear(10**6, 10**6, bias=False)).total_bytes == 4 * 10**12


def test_layers_without_a_size_are_refused() -> None:
    with pytest.raises(CannotRun, match=r"0\.weight, 0\.bias have no shape before the first batch"):
        measure_model(nn.Sequential(nn.LazyLinear(3)), "it")


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (433_249_280, "413.18 MiB"), (5 * 2**50, "5120.00 TiB")],
)
def test_sizes_are_written_with_1024(size: int, words: str) -> None:
    assert human(size) == words


def test_weights_are_counted_from_their_shards(tmp_path: Path) -> None:
    state = {"a.weight": torch.zeros(100, 4), "a.bias": torch.zeros(100, dtype=torch.bfloat16), "n": torch.arange(3)}
    save_weights(state, tmp_path, max_shard_size=1000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        expected = Estimate("float32", "a", 2000, 2024, 2000, 4000, 8024)
        assert estimate(measure_weights(path), "float32", "adam") == expected


def with_head(path: Path, head: Any, content: int) -> None:
    """A safetensors file with this header, and a hole of that many bytes."""
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + content)


def test_only_the_head_of_weights_is_read(tmp_path: Path) -> None:
    """The file is larger than memory."""
    size = 2**40
    with_head(tmp_path / "w.safetensors", {"w": {"dtype": "F32", "shape": [2, 2**37], "data_offsets": [0, size]}}, size)
    assert estimate(measure_weights(tmp_path / "w.safetensors"), "bfloat16", "sgd").total_bytes == size // 2


def test_weights_of_a_dtype_that_torch_lacks_are_counted(tmp_path: Path) -> None:
    with_head(tmp_path / "w.safetensors", {"w": {"dtype": "F4", "shape": [128], "data_offsets": [0, 64]}}, 64)
    measured = measure_weights(tmp_path / "w.safetensors")
    assert [(tensor.count, tensor.size) for tensor in measured.tensors] == [(128, 64)]
    assert estimate(measured, "float32", "adam").total_bytes == 512


@pytest.mark.parametrize(
    ("entry", "content"),
    [
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, 15),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, 17),
        ({"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}, 16),
        ({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}, 0),
        ({"dtype": "F32", "shape": [4]}, 16),
        ({"dtype": 32, "shape": [4], "data_offsets": [0, 16]}, 16),
        (4, 16),
    ],
)
def test_damaged_weights_are_refused(tmp_path: Path, entry: Any, content: int) -> None:
    with_head(tmp_path / "w.safetensors", {"w": entry}, content)
    with pytest.raises(CannotRun, match=r"w\.safetensors is damaged"):
        measure_weights(tmp_path / "w.safetensors")


class Runs:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "model.safetensors"])
def test_code_in_weights_is_not_run(tmp_path: Path, name: str) -> None:
    torch.save(Runs(tmp_path / "was-here"), tmp_path / name)
    path = tmp_path / name if name == "weights.pt" else tmp_path
    expected = "only .safetensors files are looked at" if not name.endswith("safetensors") else "damaged, or not a safe"
    with pytest.raises(CannotRun, match=expected):
        told(path)
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize("config", ["{}", "[", '{"model_type": "no-such-type"}'])
def test_a_config_of_no_use_leaves_the_weights_with_a_note_or_is_refused(tmp_path: Path, config: str) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(CannotRun, match=r"config\.json"):
        told(tmp_path)
    save_weights({"w": torch.zeros(3)}, tmp_path)
    text = told(tmp_path)
    assert "3 parameters" in text
    assert "note: counted from the names in the weights" in text


def test_a_config_without_transformers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CannotRun, match=r"package transformers is not installed for .*: pip install transformers; and"):
        told(tmp_path)


def test_code_next_to_a_config_is_not_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'was-here')!r}, 'w')\n")
    with pytest.raises(CannotRun, match="no model can be built"):
        told(tmp_path)
    assert not (tmp_path / "was-here").exists()


def test_names_out_of_a_file_do_not_steer_the_terminal(tmp_path: Path) -> None:
    save_weights({"a\x1b[2J.w": torch.zeros(3)}, tmp_path)
    text = told(tmp_path)
    assert r"a\x1b[2J" in text
    assert "\x1b" not in text
