import pytest
from accel_state import DistributedType
from accel_state.distributed_type import distributed_type


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ("cpu", 1, DistributedType.NO),
        ("cuda", 1, DistributedType.NO),
        ("cpu", 2, DistributedType.MULTI_CPU),
        ("cuda", 8, DistributedType.MULTI_GPU),
        ("npu", 2, DistributedType.MULTI_NPU),
        ("xpu", 2, DistributedType.MULTI_XPU),
        ("xla", 1, DistributedType.XLA),
        ("xla", 8, DistributedType.XLA),
    ],
)
def test_the_kind_of_device_and_the_number_of_processes_give_the_type(
    kind: str, size: int, expected: DistributedType
) -> None:
    """Feature rows S4 and S25."""
    assert distributed_type(kind, size) is expected


def test_tpu_is_another_name_of_xla() -> None:
    """Feature row S26, decision 4."""
    assert DistributedType["TPU"] is DistributedType["XLA"]
    assert distributed_type("xla", 8) == DistributedType.TPU


def test_a_type_compares_with_its_name() -> None:
    """Feature row S25: scripts compare with members, log files with text."""
    assert DistributedType.MULTI_GPU == "MULTI_GPU"
    assert str(DistributedType.NO) == "NO"
    assert DistributedType("NO") != DistributedType.MULTI_CPU


def test_several_processes_on_a_device_without_a_name_are_refused() -> None:
    with pytest.raises(ValueError, match="MULTI_ABACUS"):
        distributed_type("abacus", 2)
