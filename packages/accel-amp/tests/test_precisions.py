"""Names become precisions, and each says where it cannot run."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_amp import PRECISIONS, Precision, PrecisionPolicy
from accel_amp.precisions import fp8
from accel_state import UnknownName
from torch import nn
from torch.optim import SGD


def test_the_files_of_the_folder_are_the_precisions() -> None:
    assert PRECISIONS.names() == ("bf16", "fp16", "fp8", "no")


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("no", PrecisionPolicy()),
        ("bf16", PrecisionPolicy(torch.bfloat16, torch.float32)),
        ("fp16", PrecisionPolicy(torch.float16, torch.float32, scale_loss=True)),
        ("fp8", PrecisionPolicy(torch.bfloat16, torch.float32)),
    ],
)
def test_a_precision_is_its_policy(name: str, policy: PrecisionPolicy) -> None:
    precision = PRECISIONS.load(name)()
    assert isinstance(precision, Precision)
    assert (precision.name, precision.policy) == (name, policy)


def test_an_unknown_precision_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match="no precision named 'fp4'; there are: bf16, fp16, fp8, no"):
        PRECISIONS.load("fp4")


@pytest.mark.parametrize("name", ["no", "bf16", "fp16"])
def test_every_precision_runs_on_a_cpu(name: str) -> None:
    assert PRECISIONS.load(name)().missing("cpu") is None


def test_no_mixed_precision_runs_everywhere() -> None:
    assert PRECISIONS.load("no")().missing("xla") is None


@pytest.mark.parametrize(
    ("major", "words"), [(8, None), (7, "this GPU has no bfloat16, and emulates it slowly; use fp16")]
)
def test_bf16_is_missing_on_a_gpu_that_would_emulate_it(
    monkeypatch: pytest.MonkeyPatch, major: int, words: str | None
) -> None:
    """A V100 and a T4 have compute capability 7, on which torch makes tensors of bfloat16 all the same."""
    for name, answer in {
        "is_available": True,
        "current_device": 0,
        "get_device_properties": SimpleNamespace(major=major),
        "_check_bf16_tensor_supported": True,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.version, "hip", None)
    assert PRECISIONS.load("bf16")().missing("cuda") == words


def test_fp16_is_missing_on_xla() -> None:
    assert PRECISIONS.load("fp16")().missing("xla") == "XLA trains in bf16; use bf16"
    assert PRECISIONS.load("fp16")().missing("cuda") is None


@pytest.mark.parametrize(
    ("kind", "capability", "installed", "words"),
    [
        ("cpu", (9, 0), True, "float8 matrix products need a CUDA GPU, and this is cpu; use bf16"),
        ("cuda", (8, 0), True, "need compute capability 8.9 (Ada, Hopper or newer); this GPU has 8.0; use bf16"),
        ("cuda", (9, 0), False, "torchao is not installed: pip install torchao"),
        ("cuda", (9, 0), True, None),
    ],
)
def test_fp8_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, kind: str, capability: tuple[int, int], installed: bool, words: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(fp8, "find_spec", lambda name: object() if installed else None)
    found = PRECISIONS.load("fp8")().missing(kind)
    assert found is None if words is None else words in str(found)


@pytest.mark.filterwarnings("ignore")
def test_linear_layers_learn_in_float8_with_their_own_parameters() -> None:
    """On a CPU the float8 products are emulated; the last layer, and sides that do not divide by 16, stay."""
    pytest.importorskip("torchao", reason="needs the extra fp8")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 24), nn.Linear(24, 16), nn.Linear(16, 16))
    before = list(model.parameters())
    optimizer = SGD(before, lr=0.05)
    assert fp8.with_float8(model, emulate=True) is model
    assert [type(one).__name__ for one in model] == ["Float8Linear", "Linear", "Linear", "Linear"]
    assert all(one is other for one, other in zip(before, model.parameters(), strict=True))
    inputs, losses = torch.randn(32, 16), []
    for _ in range(30):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(inputs) - inputs).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_float8_products_are_padded_to_what_hardware_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 5 rows the gradient of a weight is a product over 5: cuBLAS takes multiples of 16 only."""
    pytest.importorskip("torchao", reason="needs the extra fp8")
    inner = []

    def multiplied(left: Any, right: Any, *_: Any, out_dtype: torch.dtype, **__: Any) -> torch.Tensor:
        inner.append(left.shape[1])
        product: torch.Tensor = left.float() @ right.float()
        return product.to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", multiplied)
    model = fp8.with_float8(nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 16)))
    model(torch.ones(5, 16, requires_grad=True)).sum().backward()
    assert inner == [16, 32, 16]


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        PrecisionPolicy().compute = torch.float16  # type: ignore[misc] # it is frozen
