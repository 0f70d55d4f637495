"""Names become objects: the only place that knows which strategy, precision or device a run has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from accel_amp import PRECISIONS, LossScaler, Precision, PrecisionPolicy, UnpreparedGuard
from accel_parallel import STRATEGIES, Engine, EngineOptions, Strategy
from accel_state import AccumulationState, CannotRun, Run, RunRequest, Transport, acquire, current, is_initialized
from accel_state.mesh import MeshSpec

from accel.compat.gradient_state import GradientState

if TYPE_CHECKING:
    from accel.settings import Settings

#: the strategy that is chosen: of one process, of whole or of sharded parameters, or that of an engine with options
AUTO = "auto"
_SINGLE, _WHOLE = "single", "ddp"
SHARDED = "fsdp2"
ENGINE = "deepspeed"
#: how the strategies are installed that come with packages of their own
INSTALLS = {ENGINE: "pip install 'accel[deepspeed]'"}


@dataclass(frozen=True, slots=True)
class Components:
    """What an Accelerator is made of."""

    run: Run
    strategy: Strategy
    precision: Precision
    accumulation: AccumulationState
    #: what takes backwards and steps in torch's place, if the strategy has such an engine
    engine: Engine | None
    scaler: LossScaler | None
    guard: UnpreparedGuard
    policy: PrecisionPolicy


def build_components(settings: Settings) -> Components:
    """The components that the settings name.

    Raises: CannotRun with every reason why they do not go together here; RunConflict when the process runs otherwise.
    Collective: every process must call.
    """
    silent = settings.mixed_precision is None and is_initialized() and current().precision is not None
    wanted = None if silent else settings.mixed_precision or "no"
    asked = settings.parallelism.mesh if settings.parallelism is not None else None
    begin = STRATEGIES.load(settings.strategy).begin if settings.strategy in STRATEGIES.names() else None
    if begin is not None:
        begin()
    run = acquire(RunRequest(settings.cpu, wanted, settings.handlers.group.options, asked))
    precision = PRECISIONS.load(run.precision or "no")()
    strategy = settings.strategy if isinstance(settings.strategy, Strategy) else _load(settings, run)
    if strategy.name == SHARDED and run.device_mesh is None:
        run = acquire(RunRequest(mesh=MeshSpec(shard=run.topology.world_size)))
    kind, policy = run.placed_on.type, precision.policy
    missing = precision.missing(kind)
    accumulation = AccumulationState(settings.accumulation_steps, at_epoch_end=settings.accumulation.end)
    accumulation.plugin_kwargs = settings.accumulation.to_kwargs()
    GradientState.follow(accumulation)
    problems = [*strategy.check(run, precision), *([missing] if missing is not None else [])]
    if policy.scale_loss and not settings.handlers.scaler.enabled:
        problems.append(
            "GradScalerKwargs(enabled=False): in fp16 small gradients become zero if nobody scales the loss; leave it"
            ' out, or use mixed_precision="bf16"'
        )
    mesh = asked if asked is not None else run.mesh
    if not strategy.shards and (mesh.tensor > 1 or (asked is not None and mesh.shard > 1)):
        problems.append(
            f"it keeps models whole, and dp_shard_size={mesh.shard}, tp_size={mesh.tensor} divide them; leave out"
            " strategy"
        )
    if run.mesh.tensor > 1 and settings.recomputation is not None and settings.compilation.backend != "no":
        problems.append(
            "torch.compile cannot recompute layers that are divided (tp_size): leave out activation checkpointing, or"
            " torch.compile"
        )
    if problems:
        raise CannotRun(f"strategy {strategy.name} with precision {precision.name} on {kind}", problems)
    spread = _spread_over(run.transport) if strategy.shards else None
    scales = policy.scale_loss and strategy.engine is None
    scaler = LossScaler(kind, spread=spread, **settings.handlers.scaler.to_kwargs()) if scales else None
    return Components(
        run=run,
        strategy=strategy,
        engine=strategy.engine,
        precision=precision,
        accumulation=accumulation,
        policy=_asked(policy, settings),
        scaler=scaler,
        guard=UnpreparedGuard(accumulation, scaler),
    )


def unknown_strategy(name: str) -> str | None:
    """Why no strategy that is installed has the name, in words; None if a strategy has it."""
    known = (AUTO, *STRATEGIES.names())
    if name in known:
        return None
    if name in INSTALLS:
        return f"strategy={name!r} comes with a package that is not installed: {INSTALLS[name]}"
    return f"strategy={name!r}: expected one of {', '.join(known)}, or a Strategy"


def engine_options(words: Mapping[str, str]) -> EngineOptions:
    """The options for the strategy that brings an engine.

    Raises: ValueError for names that are not known, and if the strategy is not installed.
    """
    missing = unknown_strategy(ENGINE)
    if missing is not None:
        raise ValueError(missing)
    options = STRATEGIES.load(ENGINE).engine_options
    if options is None:
        raise ValueError(f"strategy={ENGINE!r}, as it is installed, takes no options, found {', '.join(words)}")
    return options.from_words(words)


def _spread_over(transport: Transport) -> Callable[[torch.Tensor], None]:
    """What makes a number of this rank the largest of all ranks."""

    def spread(number: torch.Tensor) -> None:
        number.copy_(transport.all_reduce(number, "max"))

    return spread


def _asked(policy: PrecisionPolicy, settings: Settings) -> PrecisionPolicy:
    asked = settings.handlers.autocast
    return replace(
        policy,
        compute=policy.compute if asked.enabled else None,
        output=None if asked.keep_outputs else policy.output,
        cache=asked.cache_enabled,
    )


def _load(settings: Settings, run: Run) -> Strategy:
    name = str(settings.strategy)
    sharded = run.mesh.shard > 1 or run.mesh.tensor > 1 or settings.fsdp is not None
    if name == AUTO:
        name = ENGINE if settings.engine is not None else SHARDED if sharded else _WHOLE
    if name in (SHARDED, _WHOLE) and run.topology.world_size == 1 and str(settings.strategy) != _WHOLE:
        name = _SINGLE  # nothing to share
    # a strategy takes the options that are meant for it
    tensor_plan = settings.parallelism.tp_plan if settings.parallelism is not None else None
    windows = {"accumulation_steps": settings.accumulation_steps, "split_batches": settings.data.split_batches}
    options: dict[str, dict[str, Any]] = {
        _WHOLE: settings.handlers.ddp.to_kwargs(),
        SHARDED: {"plugin": settings.fsdp, "tensor_plan": tensor_plan},
        ENGINE: {"plugin": settings.engine, **windows},
    }
    return STRATEGIES.load(name)(**options.get(name, {}))
