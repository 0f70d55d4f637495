"""Names become precisions, and each says where it cannot run."""

import pytest
import torch
from accel_amp import PRECISIONS, Precision, PrecisionPolicy
from accel_state import UnknownName


def test_the_files_of_the_folder_are_the_precisions() -> None:
    assert PRECISIONS.names() == ("bf16", "fp16", "no")


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("no", PrecisionPolicy()),
        ("bf16", PrecisionPolicy(torch.bfloat16, torch.float32)),
        ("fp16", PrecisionPolicy(torch.float16, torch.float32, scale_loss=True)),
    ],
)
def test_a_precision_is_its_policy(name: str, policy: PrecisionPolicy) -> None:
    precision = PRECISIONS.load(name)()
    assert isinstance(precision, Precision)
    assert (precision.name, precision.policy) == (name, policy)


def test_an_unknown_precision_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match="no precision named 'fp8'; there are: bf16, fp16, no"):
        PRECISIONS.load("fp8")


@pytest.mark.parametrize("name", ["no", "bf16", "fp16"])
def test_every_precision_runs_on_a_cpu(name: str) -> None:
    assert PRECISIONS.load(name)().missing("cpu") is None


def test_no_mixed_precision_runs_everywhere() -> None:
    assert PRECISIONS.load("no")().missing("xla") is None


@pytest.mark.parametrize(("supported", "words"), [(True, None), (False, "this GPU has no bfloat16; use fp16")])
def test_bf16_is_missing_on_a_gpu_without_it(
    monkeypatch: pytest.MonkeyPatch, supported: bool, words: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
    assert PRECISIONS.load("bf16")().missing("cuda") == words


def test_fp16_is_missing_on_xla() -> None:
    assert PRECISIONS.load("fp16")().missing("xla") == "XLA trains in bf16; use bf16"
    assert PRECISIONS.load("fp16")().missing("cuda") is None


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        PrecisionPolicy().compute = torch.float16  # type: ignore[misc]
