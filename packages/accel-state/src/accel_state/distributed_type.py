"""The kind of devices of a job, under the names that training scripts compare with."""

from enum import StrEnum


class DistributedType(StrEnum):
    """The kind of devices of the processes of a job.

    `NO` is one process, and `TPU` another name of `XLA`. No job has `FSDP`, `DEEPSPEED` or `MEGATRON_LM`, which are
    there so that scripts for Accelerate run.
    """

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    TPU = "XLA"
    MEGATRON_LM = "MEGATRON_LM"


def distributed_type(device_kind: str, world_size: int) -> DistributedType:
    """Return the kind of devices of some processes.

    Args:
        device_kind: Type of the device, as torch names it.
        world_size: Number of processes.

    Raises:
        ValueError: For several processes on a kind of device that has no name here.
    """
    if device_kind == "xla":
        return DistributedType.XLA
    if world_size == 1:
        return DistributedType.NO
    name = "MULTI_GPU" if device_kind == "cuda" else f"MULTI_{device_kind.upper()}"
    return DistributedType(name)
