"""Make strategy and precision of their names, as `accel_state.run_context` makes device and transport."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from accel_amp import PRECISIONS, LossScaler, Precision, PrecisionPolicy, UnpreparedGuard
from accel_parallel import STRATEGIES, Steps, Strategy
from accel_parallel.choice import SHARDED, make_strategy
from accel_state import AccumulationState, CannotRun, Run, RunRequest, acquire, current, is_initialized
from accel_state.mesh import Axis, MeshSpec
from accel_state.run_context import follow

if TYPE_CHECKING:
    from accel_sequence.sequences import Sequences

    from accel.settings import Settings


@dataclass(frozen=True, slots=True)
class Components:
    """The objects that the settings of an Accelerator name.

    Args:
        run: What is settled for the process.
        strategy: How parameters and gradients are spread.
        precision: Which dtypes are used.
        accumulation: The window of micro-batches.
        scaler: The loss scaler in fp16, or None.
        guard: What refuses optimizers that were not prepared.
        policy: The precision, with the options of autocast.
        sequences: The division of sequences over ranks, or None.
    """

    run: Run
    strategy: Strategy
    precision: Precision
    accumulation: AccumulationState
    scaler: LossScaler | None
    guard: UnpreparedGuard
    policy: PrecisionPolicy
    sequences: Sequences | None = None

    @property
    def steps(self) -> Steps:
        """The steps of the strategy."""
        return self.strategy.steps

    def refuse(self, call: str) -> None:
        """Raise if the strategy cannot serve a call.

        Raises:
            ValueError: It cannot; with the reason, and what to do instead.
        """
        refusals = {**self.steps.refusals, **(self.sequences.refusals if self.sequences is not None else {})}
        if call in refusals:
            raise ValueError(f"{call}: {refusals[call]}")


def build_components(settings: Settings) -> Components:
    """Make the components that settings name.

    Raises:
        CannotRun: It has every reason why they do not go together here.
        RunConflict: The process runs otherwise already.

    Collective:
        Every process must call.
    """
    silent = settings.mixed_precision is None and is_initialized() and current().precision is not None
    wanted = None if silent else settings.mixed_precision or "no"
    asked = settings.parallelism.mesh if settings.parallelism is not None else None
    if asked is not None and asked.shard == 1 and (settings.asked.fsdp or settings.strategy == SHARDED):
        # ranks that share a sequence hold parts of the model too
        shared = asked.context * asked.sequence
        asked = replace(asked, replicate=asked.replicate // shared, shard=shared)
    begin = STRATEGIES.load(settings.strategy).begin if settings.strategy in STRATEGIES.names() else None
    if begin is not None:
        begin()
    run = acquire(RunRequest(settings.cpu, wanted, settings.handlers.group.options, asked, renews=True))
    precision = PRECISIONS.load(run.precision or "no")()
    strategy = settings.strategy
    if not isinstance(strategy, Strategy):
        strategy = make_strategy(strategy, settings.options, settings.asked, run)
    if strategy.axes and run.device_mesh is None:
        run = acquire(RunRequest(mesh=MeshSpec(shard=run.topology.world_size)))
    kind, policy = run.placed_on.type, precision.policy
    missing = precision.missing(kind)
    accumulation = AccumulationState(settings.accumulation_steps, at_epoch_end=settings.accumulation.end)
    accumulation.plugin_kwargs = settings.accumulation.to_kwargs()
    problems = [*strategy.check(run, precision), *([missing] if missing is not None else [])]
    if policy.scale_loss and not settings.handlers.scaler.enabled:
        problems.append(
            "GradScalerKwargs(enabled=False): in fp16 small gradients become zero if nobody scales the loss; leave it"
            ' out, or use mixed_precision="bf16"'
        )
    # another Accelerator may have asked for shards
    divided = {Axis.SHARD: asked is not None and run.mesh.shard > 1, Axis.TENSOR: run.mesh.tensor > 1}
    if any(size for axis, size in divided.items() if axis not in strategy.axes):
        problems.append(
            f"it keeps models whole, and dp_shard_size={run.mesh.shard}, tp_size={run.mesh.tensor} divide them; leave"
            " out strategy"
        )
    if run.mesh.tensor > 1 and settings.recomputation is not None and settings.compilation.backend != "no":
        problems.append(
            "torch.compile cannot recompute layers that are divided (tp_size): leave out activation checkpointing, or"
            " torch.compile"
        )
    sequences = None
    if run.mesh.context * run.mesh.sequence > 1:
        from accel_sequence.sequences import Sequences

        sequences = Sequences(run)
        if not strategy.shares_sequences:
            problems.append("it does not divide sequences: leave out sp_size and cp_size, or strategy")
        if settings.compilation.backend != "no":
            problems.append("torch.compile of models whose sequences are divided is not there; leave out one of them")
    if problems:
        raise CannotRun(f"strategy {strategy.name} with precision {precision.name} on {kind}", problems)
    follow(accumulation)
    make = partial(LossScaler, kind, **settings.handlers.scaler.to_kwargs())
    scaler = strategy.steps.loss_scaler(make, run.transport) if policy.scale_loss else None
    return Components(
        run=run,
        strategy=strategy,
        precision=precision,
        accumulation=accumulation,
        policy=_asked(policy, settings),
        scaler=scaler,
        guard=UnpreparedGuard(accumulation, scaler),
        sequences=sequences,
    )


def _asked(policy: PrecisionPolicy, settings: Settings) -> PrecisionPolicy:
    asked = settings.handlers.autocast
    return replace(
        policy,
        compute=policy.compute if asked.enabled else None,
        output=None if asked.keep_outputs else policy.output,
        cache=asked.cache_enabled,
    )
