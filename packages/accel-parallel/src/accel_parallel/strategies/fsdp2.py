"""Shard each parameter, gradient and optimizer state over processes (torch's fully_shard)."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import ClassVar, Self, cast, final

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
)
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from accel_parallel.fsdp_options import FullyShardedDataParallelPlugin
from accel_parallel.invariants import ModelFacts, parameter_ids, refuse_strange
from accel_parallel.missed_gradients import MissedGradients
from accel_parallel.rank_zero_source import RankZeroSource, send_tensors
from accel_parallel.rebind import carry_over, refuse_hooks
from accel_parallel.replicated_gradients import ReplicatedGradientSync
from accel_parallel.sharded.copies import allow_copies
from accel_parallel.sharded.copies_of_parts import CopiesOfParts
from accel_parallel.sharded.forward import ShardedForward
from accel_parallel.sharded.loaded_state import divide_loaded
from accel_parallel.sharded.model_exchanges import ModelExchanges
from accel_parallel.sharded.numbers import guard_numbers
from accel_parallel.sharded.refusals import refuse_mixed_dtypes, refuse_sharded_parts, refuse_sparse
from accel_parallel.sharded.steps import ShardedSteps
from accel_parallel.sharded.unused_parameter_check import UnusedParameterCheck
from accel_parallel.stages.arrival import arrives_divided, average_over_samples, take
from accel_parallel.stages.gradient_comparison import GradientComparison
from accel_parallel.stages.tensor_parallel import parallelize, share_generators
from accel_parallel.stages.tensor_plan import Plan, styles_of
from accel_parallel.strategy import Strategy
from accel_parallel.strategy_options import Asked
from accel_parallel.wrap_policy import without_ties

logger = logging.getLogger("accel")
_NOTHING = nullcontext()


@final
class Fsdp2(Strategy):
    """The strategy that shards models block by block, each gathered for its forward and backward only.

    Gradients are reduced to their parts in each backward, also within a window of accumulation: whole gradients would
    take the memory of the whole model. So `no_sync` has no effect on them. Copies of a sharded model average their
    parts at the end of a window.

    Args:
        plugin: Options of sharding.
        tensor_plan: Layers to divide, by patterns of their names.
    """

    name: ClassVar[str] = "fsdp2"
    steps: ShardedSteps
    options_type: ClassVar[type | None] = FullyShardedDataParallelPlugin
    axes: ClassVar[tuple[Axis, ...]] = (Axis.SHARD, Axis.TENSOR)
    moves_models: ClassVar[bool] = True
    is_fsdp2: ClassVar[bool] = True
    shares_sequences: ClassVar[bool] = True

    def __init__(self, plugin: FullyShardedDataParallelPlugin | None = None, tensor_plan: Plan | None = None) -> None:
        self.plugin = plugin or FullyShardedDataParallelPlugin()
        self.tensor_plan = tensor_plan
        self.steps = ShardedSteps()

    @classmethod
    def made(cls, options: FullyShardedDataParallelPlugin | None, asked: Asked) -> Self:
        """Return the strategy with its plugin, and the plan of the script for layers that are divided."""
        return cls(options, asked.tensor_plan)

    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """Return a reason on devices that torch cannot shard over, and for half precision whose loss nobody scales."""
        problems = self.plugin.problems()
        if run.placed_on.type in ("xla", "mps"):
            problems.append(f"torch's fully_shard does not run on {run.placed_on.type}")
        if self.plugin.find_unused_parameters and not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            problems.append(
                f"find_unused_parameters=True: torch {torch.__version__} cannot do that; take 2.13 or newer"
            )
        own = self.plugin.mixed_precision_policy
        if not problems and own is not None and own.param_dtype is torch.float16 and not precision.policy.scale_loss:
            problems.append(
                "mixed_precision_policy computes in float16, and the loss is not scaled: small gradients become zero;"
                ' ask for mixed_precision="fp16" too'
            )
        return problems

    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """Shard the parameters of a model, with the weights and buffers that rank 0 has.

        Args:
            model: The model. Weights on the meta device stay there, as parts.
            run: The current run, with a mesh.
            policy: Dtypes of forwards.

        Returns:
            The model itself. One that is sharded already comes back as it is; if a strategy has sharded it, its ranks
            exchange beside torch what they did.

        Raises:
            BrokenInvariant: Ranks have unlike models.
            ValueError: A part of the model is sharded already.

        Collective:
            Every rank must call.
        """
        if isinstance(model, FSDPModule) and (exchanges := ModelExchanges.of(model)) is not None:
            self._take(exchanges, run)
            return model
        arrives = arrives_divided(model)
        if isinstance(model, FSDPModule) and not arrives:
            return model
        if not arrives:
            refuse_sharded_parts(model)
        refuse_hooks(model.named_parameters())
        before = list(model.named_parameters(remove_duplicate=False))
        refuse_sparse(model)
        precision = self._precision(policy)
        whole_everywhere = self._whole(model, half=precision.param_dtype is not None)
        source = self._source(model, run, whole_everywhere) if not arrives else None
        facts = ModelFacts.of(model)
        facts.agree(run.transport, f"prepare ({self.name})")
        masters = torch.float32 if precision.param_dtype is not None else None
        arrival = None
        if arrives:
            arrival = take(model, run, masters, self.tensor_plan)
            whole_everywhere = self._whole(model, half=precision.param_dtype is not None)
        whole = _mesh_of(run)
        data = (Axis.REPLICATE, Axis.SHARD) if run.mesh.replicate > 1 else (Axis.SHARD,)
        mesh = whole[tuple(map(str, data))]
        groups = [mesh.get_group(axis) for axis in range(mesh.ndim) if mesh.size(axis) > 1]
        is_divided = run.mesh.tensor > 1
        styles = styles_of(model, run.mesh.tensor, self.tensor_plan) if is_divided and not arrives else {}
        if masters is not None:
            _make_masters(model)
        layers = whole[str(Axis.TENSOR)]
        everywhere = [*groups, layers.get_group()] if is_divided else groups
        send = partial(send_tensors, groups=everywhere, device=run.placed_on, stay=True)
        send([*(one for one in model.parameters() if one in whole_everywhere), *model.buffers()])
        if arrival is not None:
            send_tensors(arrival.layers, groups, run.placed_on)
        if is_divided:
            share_generators(layers, run.placed_on)
        if styles:
            parallelize(model, styles, layers, send)
        # what was divided just now has other parameters
        whole_everywhere = self._whole(model, half=precision.param_dtype is not None)
        for parameter in whole_everywhere:
            if not parameter.is_meta:
                parameter.data = parameter.data.to(run.placed_on)
        blocks = without_ties(model, self.plugin.blocks(model))
        if not blocks and run.topology.rank == 0 and self.plugin.auto_wrap_policy != "no_wrap":
            logger.warning(
                "fsdp2: no blocks were found in %s, so its forward gathers all of its weights at once; name the classes"
                ' of its blocks (transformer_cls_names_to_wrap), or say auto_wrap_policy="no_wrap"',
                type(model).__name__,
            )
        spread = arrival.spread if arrival is not None else []
        left_out = whole_everywhere.union(spread)
        refuse_mixed_dtypes(model, blocks, left_out)
        # on the CPU weights are where they would be sent to
        offloads = self.plugin.cpu_offload and run.placed_on.type != "cpu"
        # also if a rank has nobody to share with: optimizers need all parameters to be of one kind
        for module in [*reversed(blocks), model]:
            # a block at a time: the host is not asked again for what the device has
            send(one for one in module.parameters() if one not in whole_everywhere)
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=self.plugin.reshard_after_forward if module is not model else False,
                mp_policy=precision,
                offload_policy=CPUOffloadPolicy() if offloads else OffloadPolicy(),
                ignored_params=left_out,
            )
        if self.plugin.find_unused_parameters:
            cast("FSDPModule", model).set_reduce_scatter_unused_params(True)
        copied = run.mesh.replicate > 1 and not offloads
        kept_whole = [parameter for parameter in model.parameters() if parameter in whole_everywhere]
        syncs = [ReplicatedGradientSync(kept_whole, groups)] if kept_whole else []
        if spread:
            average_over_samples(spread, run.mesh.shard)
            syncs.append(ReplicatedGradientSync(spread, groups[:1] if run.mesh.replicate > 1 else []))
        exchanges = ModelExchanges(
            groups,
            everywhere,
            syncs,
            CopiesOfParts(model, mesh.get_group(0), precision.reduce_dtype) if copied else None,
            None if self.plugin.find_unused_parameters else UnusedParameterCheck(model, run.transport),
        )
        exchanges.stay_with(model)
        self._take(exchanges, run)
        if source is not None:
            source.fill(model, groups, run.placed_on, torch.device("cpu") if offloads else run.placed_on)
        facts.check(model, masters)
        carry_over(before, dict(model.named_parameters(remove_duplicate=False)))
        allow_copies(model)
        divide_loaded(model)
        guard_numbers(model.parameters())
        if is_divided:
            GradientComparison(model, layers, run.placed_on)
        methods = self.plugin.forward_methods
        if methods is None:
            methods = ["generate"] if callable(getattr(model, "generate", None)) else []
        ShardedForward(model, groups, run.placed_on, policy).register(methods)
        return model

    def _take(self, exchanges: ModelExchanges, run: Run) -> None:
        if exchanges not in self.steps.models:
            self.steps.models.append(exchanges)
        if self.steps.torch.missed is None:
            self.steps.torch.missed = MissedGradients(run, exchanges.groups, exchanges.everywhere, self._late)

    def _source(self, model: nn.Module, run: Run, whole: set[nn.Parameter]) -> RankZeroSource | None:
        """Return the weights, if only rank 0 has them, and the plugin allows that."""
        if not self.plugin.cpu_ram_efficient_loading or run.mesh.tensor > 1:
            return None
        source = RankZeroSource(model, whole, run)
        return source if source.is_needed else None

    def _precision(self, policy: PrecisionPolicy) -> MixedPrecisionPolicy:
        return self.plugin.mixed_precision_policy or MixedPrecisionPolicy(
            param_dtype=policy.compute,
            reduce_dtype=torch.float32 if policy.compute is not None else None,
            cast_forward_inputs=False,
        )

    def _whole(self, model: nn.Module, *, half: bool) -> set[nn.Parameter]:
        """Return the parameters that every rank holds whole."""
        # a single number cannot be divided, and torch computes BatchNorm in the dtype of its running statistics
        numbers = {parameter for parameter in model.parameters() if parameter.dim() == 0}
        norms = [module for module in model.modules() if half and isinstance(module, _BatchNorm)]
        return numbers.union(*(module.parameters() for module in (*norms, *self.plugin.ignored(model))))

    def _late(self, models: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of layers that were put into a model after it was sharded, or raise if they are in no model."""
        syncs = [sync for exchanges in self.steps.models for sync in exchanges.whole]
        whole = [one for one in parameters if not isinstance(one, DTensor)]
        late = [one for one in whole if not any(id(one) in sync.parameters for sync in syncs)]
        if late:
            known = parameter_ids(models)
            refuse_strange([one for one in late if id(one) not in known])
        return [one for one in late if one.requires_grad]

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the model itself."""
        return model

    @contextmanager
    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> Iterator[None]:
        """Raise for sharded models, as each forward gathers weights from all ranks.

        Raises:
            ValueError: A model is sharded.
        """
        if any(isinstance(model, FSDPModule) for model in models):
            raise ValueError(
                "join_uneven_inputs with sharded models (fsdp2): each forward gathers weights from all ranks, so all"
                " need equally many batches; use even_batches=True, or ending='drop'"
            )
        yield

    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Do nothing, as gradients are kept as parts, which every backward reduces within a copy."""
        return _NOTHING

    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Do nothing, as every backward reduces."""
        return _NOTHING


def _mesh_of(run: Run) -> DeviceMesh:
    if run.device_mesh is None:
        raise CannotRun("strategy fsdp2", ["the run has no mesh; Accelerator(strategy='fsdp2') makes it"])
    return run.device_mesh


def _make_masters(model: nn.Module) -> None:
    """Make trainable parameters float32, as an optimizer that adds small steps to half precision loses them."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()


STRATEGY = Fsdp2
