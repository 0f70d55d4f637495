import copy
import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_checkpoint import CheckpointError, TensorFile, decode, encode, serialize, tensor_file
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.safetensors_header import SafetensorsHeader
from accel_checkpoint.tensor_file import NAMES, find_unsupported, read_known_header
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from xxhash import xxh3_128

Tensors = dict[str, torch.Tensor]


def written(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    told = Filesystem().write(path, serialize(tensors, metadata))
    content = path.read_bytes()
    assert (told.size, told.xxh3) == (len(content), xxh3_128(content).hexdigest())
    return content


def header(content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return found


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> list[int]:
    numbers: list[int] = tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
    return numbers


@pytest.mark.parametrize("dtype", NAMES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 1, 4)], ids=str)
def test_safetensors_alone_reads_what_was_written(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = of(dtype, *shape)
    written(tmp_path / "f", {"x": tensor})
    for read in (load_file(tmp_path / "f")["x"], TensorFile(tmp_path / "f")["x"]):
        assert (read.dtype, read.shape) == (dtype, shape)
        assert bits(read) == bits(tensor)
    assert TensorFile(tmp_path / "f").shape_and_dtype("x") == (shape, dtype)


def test_all_dtypes_fit_into_one_file_and_each_begins_where_its_width_asks(tmp_path: Path) -> None:
    tensors = {str(dtype): of(dtype, 3) for dtype in NAMES} | {"empty": torch.empty(0, 4), "one": torch.tensor(1.5)}
    content = written(tmp_path / "f", tensors)
    read = load_file(tmp_path / "f")
    assert set(read) == set(tensors)
    assert all(bits(read[name]) == bits(tensors[name]) for name in tensors)
    start = 8 + int.from_bytes(content[:8], "little")
    assert start % 64 == 0
    for name, about in header(content).items():
        if name != "__metadata__":
            assert (start + about["data_offsets"][0]) % tensors[name].element_size() == 0, name


@pytest.mark.parametrize("tensors", [{}, {"x": torch.empty(0)}, {"x": torch.empty(2, 0, 3), "y": torch.tensor(1)}])
def test_nothing_can_be_written_as_well(tmp_path: Path, tensors: Tensors) -> None:
    written(tmp_path / "f", tensors)
    assert {name: one.shape for name, one in load_file(tmp_path / "f").items()} == {
        name: one.shape for name, one in tensors.items()
    }


def test_views_are_written_as_the_numbers_that_they_show(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    views = {
        "transposed": base.t(),
        "sliced": base[1:3, ::2],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "conjugate": conjugate,
        "negative": torch.imag(conjugate),
        "trained": nn.Parameter(base[0]),
        "last": torch.ones(1, 3, 2, 2).to(memory_format=torch.channels_last),
    }
    assert views["negative"].is_neg()
    written(tmp_path / "f", views)
    read = load_file(tmp_path / "f")
    assert all(torch.equal(read[name], one) for name, one in views.items())


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 1000])
def test_the_pieces_of_a_tensor_are_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(tensor_file, "PIECE", 64)
    tensors = {"x": of(torch.uint8, size), "y": of(torch.bfloat16, size)}
    assert all(len(one) <= 64 for one in list(serialize(tensors))[1:])
    written(tmp_path / "f", tensors)
    assert all(bits(one) == bits(tensors[name]) for name, one in load_file(tmp_path / "f").items())


def test_a_tensor_larger_than_one_piece_is_whole_and_was_not_copied(tmp_path: Path) -> None:
    large = torch.arange(tensor_file.PIECE // 4 + 3, dtype=torch.int32)
    content = list(serialize({"x": large}))
    assert len(content) == 3
    assert ctypes.addressof(ctypes.c_char.from_buffer(content[1])) == large.data_ptr()
    written(tmp_path / "f", {"x": large})
    assert torch.equal(load_file(tmp_path / "f")["x"], large)


def test_what_is_said_about_the_file_is_in_it(tmp_path: Path) -> None:
    written(tmp_path / "f", {"ü": torch.ones(1)}, {"format": "pt", "words": 'a "b" ü\n'})
    file = TensorFile(tmp_path / "f")
    assert file.header.metadata == {"format": "pt", "words": 'a "b" ü\n'}
    assert list(file.header.tensors) == ["ü"]
    reader: Callable[..., Any] = safe_open
    with reader(tmp_path / "f", framework="pt") as other:
        assert other.metadata() == file.header.metadata
    assert header(written(tmp_path / "g", {}))["__metadata__"] == {"format": "pt"}


def test_a_file_that_is_there_already_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        Filesystem().write(tmp_path / "f", [b"new"])
    assert (tmp_path / "f").read_bytes() == b"old"


def test_what_the_format_has_no_name_for_is_told_with_its_reason() -> None:
    tensors = {
        "good": torch.ones(1),
        "double": torch.ones(1, dtype=torch.complex128),
        "odd": torch.zeros(1, dtype=torch.float8_e8m0fnu),
        "sparse": torch.eye(2).to_sparse(),
        "nowhere": torch.ones(1, device="meta"),
    }
    told = find_unsupported(tensors)
    assert [line.partition(":")[0] for line in told] == ["double", "odd", "sparse", "nowhere"]


@pytest.mark.parametrize("look", [lambda file: file["nothing"], lambda file: file.shape_and_dtype("nothing")])
def test_a_tensor_that_is_not_there_is_named(tmp_path: Path, look: Callable[[TensorFile], Any]) -> None:
    written(tmp_path / "f", {"x": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"f.*nothing"):
        look(TensorFile(tmp_path / "f"))


def crafted(head: dict[str, Any], numbers: bytes) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + numbers


X: dict[str, Any] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
NOT_ONE = {
    "empty": b"",
    "short": b"\x08\0\0",
    "4 GB of header": (1 << 32).to_bytes(8, "little") + b"{}",
    "2**64 of header": b"\xff" * 8 + b"{}",
    "no JSON": (4).to_bytes(8, "little") + b"nope",
    "pickle": b"\x80\x04cos\nsystem\n.",
    "beyond": crafted({"x": {**X, "data_offsets": [0, 400]}}, bytes(4)),
    "backwards": crafted({"x": {**X, "data_offsets": [4, 0]}}, bytes(4)),
    "overlap": crafted({"x": X, "y": X}, bytes(4)),
    "a hole": crafted({"x": X, "y": {**X, "data_offsets": [8, 12]}}, bytes(12)),
    "more numbers": crafted({"x": X}, bytes(8)),
    "another shape": crafted({"x": {**X, "shape": [2]}}, bytes(4)),
    "a huge shape": crafted({"x": {**X, "shape": [2**62, 2**62]}}, bytes(4)),
    "a negative shape": crafted({"x": {**X, "shape": [-1]}}, bytes(4)),
    "no dtype": crafted({"x": {**X, "dtype": "O"}}, bytes(4)),
    "deep": (200_000).to_bytes(8, "little") + b"[" * 200_000,
}


@pytest.mark.parametrize("name", NOT_ONE)
def test_what_is_no_such_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(NOT_ONE[name])
    with pytest.raises(CheckpointError, match=r"weights\.safetensors"):
        TensorFile(path)


class Net(nn.Module):
    """Matrices only, for Muon; rows that are looked up, for SparseAdam."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.rows = nn.Embedding(6, 4, sparse=sparse)
        self.out = nn.Linear(4, 3, bias=False).requires_grad_(not sparse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.tanh(self.out(self.rows(x)))
        return y


OPTIMIZERS = sorted(
    (kind for kind in vars(torch.optim).values() if isinstance(kind, type) and issubclass(kind, Optimizer)),
    key=lambda one: one.__name__,
)
OPTIMIZERS.remove(Optimizer)
EXTRA: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}],
    "Adam": [{"amsgrad": True}, {"lr": torch.tensor(0.01), "foreach": False}],
    "RMSprop": [{"momentum": 0.5, "centered": True}],
    "LBFGS": [{"lr": 0.1, "max_iter": 3}],
}


def back(state: Any, path: Path) -> Any:
    tensors: Tensors = {}
    text = json.dumps(encode(state, tensors), allow_nan=False)
    Filesystem().write(path, serialize(tensors))
    file = TensorFile(path)
    return decode(json.loads(text), lambda name: file[name].clone())  # torch rounds by the address


def steps(model: nn.Module, optimizer: Any, count: int) -> None:
    x = torch.arange(6)
    for _ in range(count):

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (model(x) - 0.1).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)


def test_there_are_fifteen_optimizers() -> None:
    assert len(OPTIMIZERS) >= 14


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda one: one.__name__)
def test_an_optimizer_goes_on_bit_for_bit(tmp_path: Path, kind: Any) -> None:
    """Fault 14."""
    for number, options in enumerate(EXTRA.get(kind.__name__, [{}])):
        torch.manual_seed(0)
        model = Net(sparse=kind.__name__ == "SparseAdam")
        optimizer = kind([parameter for parameter in model.parameters() if parameter.requires_grad], **options)
        steps(model, optimizer, 3)
        other = copy.deepcopy(model)
        again = kind([parameter for parameter in other.parameters() if parameter.requires_grad], **options)
        again.load_state_dict(back(optimizer.state_dict(), tmp_path / str(number)))
        steps(model, optimizer, 5)
        steps(other, again, 5)
        assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5, 6]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=5),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=7),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 7, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, mode="exp_range", gamma=0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 12),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def test_no_scheduler_is_left_out() -> None:
    assert set(lr_scheduler.__all__) - {"LRScheduler"} == set(SCHEDULERS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_goes_on_at_the_same_rates(tmp_path: Path, name: str) -> None:
    def made() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.05, momentum=0.9)
        return optimizer, SCHEDULERS[name](optimizer)

    def rates(optimizer: Any, schedule: Any, count: int) -> list[float]:
        found = []
        for _ in range(count):
            optimizer.step()
            schedule.step(1.0) if name == "ReduceLROnPlateau" else schedule.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    first, second = made(), made()
    rates(*first, 3)
    second[0].load_state_dict(back(first[0].state_dict(), tmp_path / "optimizer"))
    second[1].load_state_dict(back(first[1].state_dict(), tmp_path / "schedule"))
    assert rates(*first, 5) == rates(*second, 5)


def test_a_file_that_is_replaced_while_it_is_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header is of the one, and the numbers would be of the other."""
    path = tmp_path / "f"
    written(path, {"x": torch.ones(3)})
    written(tmp_path / "g", {"x": torch.ones(300)})

    def replaced(path: Path) -> SafetensorsHeader:
        found = read_known_header(path)
        (tmp_path / "g").rename(path)
        return found

    monkeypatch.setattr(tensor_file, "read_known_header", replaced)
    with pytest.raises(CheckpointError, match="was replaced while it was opened"):
        TensorFile(path)
    monkeypatch.undo()
    assert TensorFile(path)["x"].numel() == 300
