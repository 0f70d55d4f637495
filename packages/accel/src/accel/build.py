"""Names become objects: the only place that knows which strategy, precision or device a run has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from accel_amp import PRECISIONS, LossScaler, Precision, PrecisionPolicy, UnpreparedGuard
from accel_parallel import STRATEGIES, Strategy
from accel_state import AccumulationState, CannotRun, Run, RunRequest, acquire, current, is_initialized

from accel.settings import AUTO, Settings


@dataclass(frozen=True, slots=True)
class Components:
    """What an Accelerator is made of."""

    run: Run
    strategy: Strategy
    precision: Precision
    accumulation: AccumulationState
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
    run = acquire(RunRequest(cpu=settings.cpu, precision=wanted, group=settings.handlers.group.options))
    precision = PRECISIONS.load(run.precision or "no")()
    strategy = settings.strategy if isinstance(settings.strategy, Strategy) else _load(settings, run)
    kind, policy = run.placed_on.type, precision.policy
    missing = precision.missing(kind)
    accumulation = AccumulationState(settings.accumulation_steps, at_epoch_end=settings.accumulation.end)
    problems = [*strategy.check(run, precision), *([missing] if missing is not None else [])]
    if problems:
        raise CannotRun(f"strategy {strategy.name} with precision {precision.name} on {kind}", problems)
    scaler = LossScaler(kind, **settings.handlers.scaler.to_kwargs()) if policy.scale_loss else None
    return Components(
        run=run,
        strategy=strategy,
        precision=precision,
        accumulation=accumulation,
        policy=_asked(policy, settings),
        scaler=scaler,
        guard=UnpreparedGuard(accumulation, scaler),
    )


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
    if name == AUTO:
        name = "ddp" if run.topology.world_size > 1 else "single"
    # one that is asked for by name takes the options that are meant for it
    options = settings.handlers.ddp.to_kwargs() if name == "ddp" else {}
    return STRATEGIES.load(name)(**options)
