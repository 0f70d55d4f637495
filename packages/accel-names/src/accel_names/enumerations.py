"""List the words that scripts for Accelerate take from enumerations."""

from __future__ import annotations

from enum import Enum, EnumMeta


class _WithWords(EnumMeta):
    def __contains__(cls, item: object) -> bool:
        members: list[Enum] = list(cls.__members__.values())
        return item in members or item in [member.value for member in members]


class Words(Enum, metaclass=_WithWords):
    """An enumeration whose members print as their words, and which has a list of them."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def list(cls) -> list[str]:
        """Return all words."""
        return [str(member.value) for member in cls]


class ComputeEnvironment(str, Words):
    """The kind of place that a job runs in."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class SageMakerDistributedType(str, Words):
    """The way in which a job of Amazon SageMaker uses its machines."""

    NO = "NO"
    DATA_PARALLEL = "DATA_PARALLEL"
    MODEL_PARALLEL = "MODEL_PARALLEL"


class CustomDtype(Words):
    """A type of numbers that torch's dtypes do not name."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"


class PrecisionType(str, Words):
    """The name of a precision, for `mixed_precision`."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class DynamoBackend(str, Words):
    """The name of a compiler, for `dynamo_backend`."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    OFI = "OFI"
    FX2TRT = "FX2TRT"
    ONNXRT = "ONNXRT"
    OPENXLA = "OPENXLA"
    TENSORRT = "TENSORRT"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    IPEX = "IPEX"
    TVM = "TVM"
    HPU_BACKEND = "HPU_BACKEND"
    NEURON = "NEURON"
