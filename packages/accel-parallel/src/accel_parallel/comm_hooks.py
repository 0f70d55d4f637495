"""Choose torch's communication hooks, by which DistributedDataParallel compresses gradients."""

# Not with postponed annotations: torch reads those of a hook.

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


class CommHook(Enum):
    """A hook of torch that sends gradients in another form."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


def bf16_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Send gradients in bfloat16."""
    # without CUDA torch refuses its own hook, by its name; gloo adds up bfloat16 as well
    return default_hooks.bf16_compress_hook(state, bucket)


def _bf16_wrapper(hook: Hook) -> Hook:
    wrapped: Hook = default_hooks.bf16_compress_wrapper(hook)
    return lambda state, bucket: wrapped(state, bucket)  # under another name, as above


_POWER_SGD = (CommHook.POWER_SGD, CommHook.BATCHED_POWER_SGD)
_HOOKS: dict[CommHook, Hook] = {
    CommHook.NO: default_hooks.allreduce_hook,
    CommHook.FP16: default_hooks.fp16_compress_hook,
    CommHook.BF16: bf16_hook,
    CommHook.POWER_SGD: powerSGD_hook.powerSGD_hook,
    CommHook.BATCHED_POWER_SGD: powerSGD_hook.batched_powerSGD_hook,
}
_WRAPPERS: dict[CommHook, Callable[[Hook], Hook]] = {
    CommHook.NO: lambda hook: hook,
    CommHook.FP16: default_hooks.fp16_compress_wrapper,
    CommHook.BF16: _bf16_wrapper,
}


@dataclass(frozen=True, slots=True)
class CommHookSettings:
    """A communication hook with its arguments.

    Args:
        hook: The hook.
        wrapper: Hook that it is wrapped in.
        options: Arguments of torch's PowerSGDState.
    """

    hook: CommHook
    wrapper: CommHook
    options: Mapping[str, Any]

    @classmethod
    def parse(cls, hook: CommHook | str, wrapper: CommHook | str, options: Mapping[str, Any]) -> "CommHookSettings":
        """Return the settings of these names.

        Args:
            hook: Name of the hook.
            wrapper: Name of the hook that it is wrapped in: "no", "fp16" or "bf16".
            options: Arguments of torch's PowerSGDState.

        Raises:
            ValueError: Something is wrong. The message lists all.
        """
        problems, chosen = [], []
        for argument, name in (("comm_hook", hook), ("comm_wrapper", wrapper)):
            try:
                chosen.append(CommHook(name))
            except ValueError:
                chosen.append(CommHook.NO)
                problems.append(f"{argument}={name!r}: expected one of {', '.join(known.value for known in CommHook)}")
        if chosen[1] not in _WRAPPERS:
            problems.append(f"comm_wrapper={wrapper!r}: expected fp16 or bf16")
        if options and chosen[0] not in _POWER_SGD:
            problems.append(f"comm_state_option={dict(options)!r} is for power_sgd; set comm_hook to it")
        if problems:
            raise ValueError("; ".join(problems))
        return cls(chosen[0], chosen[1], options)

    def register(self, container: DistributedDataParallel) -> None:
        """Register the hook, unless gradients are sent as they are.

        Raises:
            ValueError: The hook fails in this torch.
        """
        if self.hook is self.wrapper is CommHook.NO:
            return
        state = powerSGD_hook.PowerSGDState(None, **self.options) if self.hook in _POWER_SGD else None
        if self.hook is CommHook.BATCHED_POWER_SGD and not _has_batched_power_sgd():
            raise ValueError(
                f"comm_hook={self.hook.value!r}: torch {torch.__version__} fails in it when PowerSGD begins;"
                " use power_sgd"
            )
        container.register_comm_hook(state, _WRAPPERS[self.wrapper](_HOOKS[self.hook]))


def forget_buckets(state: object) -> None:
    """Let the state of PowerSGD begin anew, as buckets are others from now on."""
    if isinstance(state, powerSGD_hook.PowerSGDState):
        for held in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            held.clear()


def _has_batched_power_sgd() -> bool:
    try:
        # what the hook calls it with; torch 2.13 asks for three dimensions
        powerSGD_hook._orthogonalize(torch.ones(2, 1, device="cpu"))  # type: ignore[no-untyped-call] # of torch
    except AssertionError:
        return False
    return True
