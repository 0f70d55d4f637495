"""In which form DistributedDataParallel sends gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from accel_parallel.bf16_hooks import bf16_gradients, bf16_gradients_of


class Form(Enum):
    """In which form gradients travel."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


Hook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]

_HOOKS: dict[Form, Hook] = {
    Form.NO: default_hooks.allreduce_hook,
    Form.FP16: default_hooks.fp16_compress_hook,
    Form.BF16: bf16_gradients,
    Form.POWER_SGD: powerSGD_hook.powerSGD_hook,
    Form.BATCHED_POWER_SGD: powerSGD_hook.batched_powerSGD_hook,
}
_WRAPPERS: dict[Form, Callable[[Hook], Hook]] = {
    Form.FP16: default_hooks.fp16_compress_wrapper,
    Form.BF16: bf16_gradients_of,
}


@dataclass(frozen=True, slots=True)
class Compression:
    """A hook of torch's, what it is wrapped in, and the settings of PowerSGD."""

    form: Form
    wrapper: Form
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, form: Form | str, wrapper: Form | str, settings: Mapping[str, Any]) -> Compression:
        """The compression of these names.

        Raises: ValueError that lists all that is wrong.
        """
        problems, names = [], ", ".join(one.value for one in Form)
        found: dict[str, Form] = {}
        for what, asked in (("comm_hook", form), ("comm_wrapper", wrapper)):
            try:
                found[what] = asked if isinstance(asked, Form) else Form(asked)
            except ValueError:
                problems.append(f"{what}={asked!r}: expected one of {names}")
        if found.get("comm_wrapper", Form.NO) not in (Form.NO, *_WRAPPERS):
            problems.append(f"comm_wrapper={wrapper!r}: expected fp16 or bf16")
        powered = found.get("comm_hook") in (Form.POWER_SGD, Form.BATCHED_POWER_SGD)
        if settings and not powered:
            problems.append(f"comm_state_option={dict(settings)!r} is for power_sgd; set comm_hook to it")
        if problems:
            raise ValueError("; ".join(problems))
        return cls(found["comm_hook"], found["comm_wrapper"], settings)

    def install(self, container: DistributedDataParallel) -> None:
        """Registers the hook, if gradients are not to travel as they are.

        Raises: ValueError for a form that this torch cannot send.
        """
        if self.form is Form.NO and self.wrapper is Form.NO:
            return
        state: Any = None
        if self.form in (Form.POWER_SGD, Form.BATCHED_POWER_SGD):
            state = powerSGD_hook.PowerSGDState(process_group=None, **self.settings)
        if self.form is Form.BATCHED_POWER_SGD and not _has_batched_power_sgd():
            raise ValueError(
                f"comm_hook={self.form.value!r}: torch {torch.__version__} fails in it when PowerSGD begins;"
                " use power_sgd"
            )
        hook = _HOOKS[self.form]
        container.register_comm_hook(state, _WRAPPERS[self.wrapper](hook) if self.wrapper is not Form.NO else hook)


def _has_batched_power_sgd() -> bool:
    try:
        # what the hook calls it with; torch 2.13 asks for three dimensions
        powerSGD_hook._orthogonalize(torch.ones(2, 1))  # type: ignore[no-untyped-call]
    except AssertionError:
        return False
    return True
