"""Every process holds a part of each parameter, gradient and optimizer state (torch's fully_shard)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar, final

import torch
from accel_amp import Precision, PrecisionPolicy
from accel_state import AccumulationState, CannotRun, Run
from accel_state.mesh import Axis
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from accel_parallel.clip import clip_sharded_norm, sharded_norm
from accel_parallel.fsdp_options import FullyShardedDataParallelPlugin
from accel_parallel.rank_zero_weights import average_over, send_weights
from accel_parallel.strategy import Strategy
from accel_parallel.wrap_policy import large_blocks, transformer_blocks, without_ties

_NOTHING = nullcontext()


@final
class Fsdp2(Strategy):
    """Shards models block by block; a block is gathered for its forward and backward, and freed after each.

    Gradients are reduced to their parts in each backward, also within a window of accumulation: whole gradients would
    take the memory of the whole model. So `no_sync` has no effect on them.
    """

    name: ClassVar[str] = "fsdp2"
    shards: ClassVar[bool] = True

    def __init__(self, plugin: FullyShardedDataParallelPlugin | None = None) -> None:
        self.plugin = plugin or FullyShardedDataParallelPlugin()

    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """A reason on devices that torch cannot shard over."""
        if run.placed_on.type in ("xla", "mps"):
            return [f"torch's fully_shard does not run on {run.placed_on.type}"]
        return self.plugin.problems()

    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """The model itself, its parameters sharded, with the weights and buffers that rank 0 has.

        Weights on the meta device stay there, as parts. Collective: every rank must call.
        """
        whole = _mesh_of(run)
        data = (Axis.REPLICATE, Axis.SHARD) if run.mesh.replicate > 1 else (Axis.SHARD,)
        mesh = whole[tuple(map(str, data))]
        groups = [mesh.get_group(axis) for axis in range(mesh.ndim) if mesh.size(axis) > 1]
        blocks = self.blocks(model)
        if policy.compute is not None:
            _make_masters(model)
        send_weights(model, groups, run.placed_on)
        whole_everywhere = self._whole(model)
        for parameter in whole_everywhere:
            if parameter.requires_grad:
                average_over(parameter, groups)
        offload = CPUOffloadPolicy() if self.plugin.cpu_offload else OffloadPolicy()
        precision = MixedPrecisionPolicy(
            param_dtype=policy.compute,
            reduce_dtype=torch.float32 if policy.compute is not None else None,
            cast_forward_inputs=False,
        )
        for module in [*reversed(blocks), model]:
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=self.plugin.reshard_after_forward if module is not model else False,
                mp_policy=self.plugin.mixed_precision_policy or precision,
                offload_policy=offload,
                ignored_params=whole_everywhere,
            )
        if callable(getattr(model, "generate", None)):
            register_fsdp_forward_method(model, "generate")
        return model

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The modules that are gathered one at a time, in the order of the model."""
        policy = self.plugin.auto_wrap_policy
        if callable(policy):
            chosen = list(policy(model))
        elif policy.lower() == "size_based_wrap":
            chosen = large_blocks(model, self.plugin.min_num_params)
        elif policy.lower() == "no_wrap":
            chosen = []
        else:
            chosen = transformer_blocks(model, self.plugin.transformer_cls_names_to_wrap)
        wanted = {id(block) for block in without_ties(model, chosen)}
        return [module for module in model.modules() if id(module) in wanted and module is not model]

    def _whole(self, model: nn.Module) -> set[nn.Parameter]:
        """Parameters that every rank holds whole: a number cannot be divided."""
        return {parameter for parameter in model.parameters() if parameter.dim() == 0}

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model itself."""
        return model

    @contextmanager
    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> Iterator[None]:
        """Nothing: refused for sharded models.

        Raises: ValueError, as each forward gathers weights from all ranks.
        """
        if any(isinstance(model, FSDPModule) for model in models):
            raise ValueError(
                "join_uneven_inputs with sharded models (fsdp2): each forward gathers weights from all ranks, so all"
                " need equally many batches; use even_batches=True, or ending='drop'"
            )
        yield

    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Does nothing: gradients are kept as parts, which every backward reduces."""
        return _NOTHING

    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Does nothing: every backward reduces."""
        return _NOTHING

    def total_norm(self, gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
        """The norm, each part counted once. Collective: every rank must call."""
        return sharded_norm(gradients, kind)

    def clip_norm(self, parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
        """The norm of all gradients, each part counted once. Collective: every rank must call."""
        return clip_sharded_norm(parameters, max_norm, kind=kind)


def _mesh_of(run: Run) -> DeviceMesh:
    if run.device_mesh is None:
        raise CannotRun("strategy fsdp2", ["the run has no mesh; Accelerator(strategy='fsdp2') makes it"])
    return run.device_mesh


def _make_masters(model: nn.Module) -> None:
    """Makes trainable parameters float32: an optimizer that adds small steps to half precision loses them."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()


STRATEGY = Fsdp2
