"""Train with float8 matrix products in linear layers, by torchao, and bfloat16 around them."""

from importlib.util import find_spec
from typing import ClassVar, final

import torch
from torch import nn

from accel_amp.policy import PrecisionPolicy
from accel_amp.precisions._base import Precision

#: the first compute capability of CUDA with float8 matrix products
CAPABILITY = (8, 9)
#: both sides of a float8 matrix product have to be divisible by it
MULTIPLE = 16


@final
class Fp8(Precision):
    """The precision float8, in linear layers except the last one, and bfloat16 around them.

    Layers whose sides do not divide by 16 stay in bfloat16.
    """

    name: ClassVar[str] = "fp8"
    policy: ClassVar[PrecisionPolicy] = PrecisionPolicy(compute=torch.bfloat16, output=torch.float32)

    def missing(self, device_kind: str) -> str | None:
        """Return a reason if torchao or the hardware is missing."""
        if device_kind != "cuda":
            return f"float8 matrix products need a CUDA GPU, and this is {device_kind}; use bf16"
        capability = torch.cuda.get_device_capability()
        if capability < CAPABILITY:
            needed, has = (".".join(map(str, version)) for version in (CAPABILITY, capability))
            return (
                f"float8 matrix products need compute capability {needed} (Ada, Hopper or newer); this GPU has {has};"
                " use bf16"
            )
        if find_spec("torchao") is None:
            return "torchao is not installed: pip install torchao"
        return None

    def converted(self, model: nn.Module) -> nn.Module:
        """Replace linear layers by layers of torchao with the same parameters, and return `model` itself."""
        return with_float8(model)


def with_float8(model: nn.Module, *, emulate: bool = False) -> nn.Module:
    """Replace linear layers by layers of torchao, and return `model` itself.

    The last linear layer stays, as its outputs are most sensitive. Layers whose sides do not divide by 16 stay too.

    Args:
        model: The model to change.
        emulate: Compute without float8 hardware, for tests.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]

    def fits(module: nn.Module, name: str) -> bool:
        if not isinstance(module, nn.Linear) or name in linear[-1:]:
            return False
        return module.in_features % MULTIPLE == 0 and module.out_features % MULTIPLE == 0

    # the gradient of a weight is a product over the rows of a batch, whose number may be any
    config = Float8LinearConfig(emulate=emulate, pad_inner_dim=True)
    convert_to_float8_training(model, module_filter_fn=fits, config=config)
    return model


PRECISION = Fp8
