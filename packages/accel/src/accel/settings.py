"""The settings of an Accelerator: arguments over environment over defaults, merged once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from inspect import signature
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from accel_amp import PRECISIONS
from accel_ops.rng import RNGType, rng_types_of
from accel_parallel import (
    Asked,
    FullyShardedDataParallelPlugin,
    ParallelismConfig,
    Strategy,
    StrategyOptions,
)
from accel_parallel.choice import AUTO, DEEPSPEED, SHARDED, WHOLE, options_from_words, problems_of
from accel_state.environ import AS_ACCELERATE, EnvironSettings, flag
from accel_state.environ import settings as environ_settings

from accel.compilation import TorchDynamoPlugin, from_names
from accel.configuration import DataLoaderConfiguration, GradientAccumulationPlugin, wrong_number
from accel.handlers import ActivationCheckpointingKwargs, Handlers

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of an Accelerator, completed from the environment and sorted by who reads them.

    Args:
        cpu: Compute on the CPU.
        mixed_precision: The name of the precision; None if nobody has asked for one.
        accumulation_steps: Micro-batches to an optimizer step.
        accumulation: How micro-batches form windows.
        handlers: Options of parts of torch.
        compilation: How models are compiled.
        data: How loaders are prepared.
        rng_types: The random generators that are made equal at the start of each epoch.
        strategy: The strategy, or its name.
        options: Options, by the names of the strategies that take them.
        asked: What the script asks for besides the options of its strategy.
        parallelism: The sizes of the mesh, or None.
        recomputation: The blocks whose activations are computed again, or None.
        device_placement: Move prepared objects to the device.
        step_scheduler_with_optimizer: Schedules advance only when the optimizer steps.
        scheduler_once_per_step: Schedules advance once for each optimizer step.
        as_accelerate: Whether the program was written for Accelerate.
    """

    cpu: bool
    mixed_precision: str | None
    accumulation_steps: int
    accumulation: GradientAccumulationPlugin
    handlers: Handlers
    compilation: TorchDynamoPlugin
    data: DataLoaderConfiguration
    rng_types: tuple[RNGType, ...]
    strategy: str | Strategy
    options: Mapping[str, Any]
    asked: Asked
    parallelism: ParallelismConfig | None
    recomputation: FullyShardedDataParallelPlugin | None
    device_placement: bool
    step_scheduler_with_optimizer: bool
    scheduler_once_per_step: bool
    as_accelerate: bool = False

    @property
    def parallelism_as_counted(self) -> ParallelismConfig | None:
        """The sizes of the mesh as the program counts with them, or None."""
        return self.parallelism.counted if self.parallelism is not None and self.as_accelerate else self.parallelism


#: switches of Accelerate's launcher, the argument in which the same can be said, and the way to say it to the launcher
_NOT_READ = (
    ("ACCELERATE_USE_DEEPSPEED", "deepspeed_plugin", "give accel launch --use_deepspeed"),
    ("ACCELERATE_USE_MEGATRON_LM", "parallelism_config", "there is no Megatron-LM here; leave it out"),
    ("ACCELERATE_USE_PARALLELISM_CONFIG", "parallelism_config", "give accel launch --parallelism_config_tp_size 2"),
)


def with_known_names(init: Callable[P, None]) -> Callable[P, None]:
    """Return a constructor whose error about unknown arguments lists all of them, with the names that are alike."""
    known = signature(init).parameters

    @wraps(init)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            from difflib import get_close_matches  # it takes 2 ms

            near = {name: get_close_matches(name, known, n=1) for name in unknown}
            listed = [f"{name} (did you mean {meant[0]}?)" if meant else name for name, meant in near.items()]
            raise TypeError(f"Accelerator has no arguments {', '.join(listed)}; help(Accelerator) lists its arguments")
        init(*args, **kwargs)

    return call


def resolve(environ: Mapping[str, str], arguments: Mapping[str, Any]) -> Settings:
    """Complete the arguments of an Accelerator from the environment.

    Args:
        environ: The variables of the environment.
        arguments: All arguments of `Accelerator`, by name.

    Raises:
        ValueError: It lists every problem.
    """
    given = SimpleNamespace(**arguments)
    problems: list[str] = []
    strategy = AUTO if given.strategy is None else given.strategy
    if not isinstance(given.device_placement, bool):
        problems.append(
            f"device_placement={given.device_placement!r}, the first argument: expected True or False; name the"
            ' others, as in Accelerator(mixed_precision="bf16")'
        )
    if given.megatron_lm_plugin is not None:
        problems.append(
            f"megatron_lm_plugin is a {type(given.megatron_lm_plugin).__name__}: there is no Megatron-LM here; leave"
            " it out, and divide layers by parallelism_config=ParallelismConfig(tp_size=...)"
        )
    from_environ = _tried(lambda: environ_settings(environ), EnvironSettings(), problems)
    if given.fp16 and given.mixed_precision not in (None, "fp16"):
        problems.append(
            f"fp16=True and mixed_precision={given.mixed_precision!r} contradict each other; give one of them"
        )
    as_accelerate = _tried(lambda: flag(environ, AS_ACCELERATE), False, problems)
    if as_accelerate:
        problems += [
            f"{name}=true has no effect in accel: {instead}, or pass {argument}=... to Accelerator"
            for name, argument, instead in _NOT_READ
            if environ.get(name, "").lower() == "true" and arguments[argument] is None
        ]
    precision = given.mixed_precision or ("fp16" if given.fp16 else from_environ.mixed_precision)
    if precision is not None and precision not in PRECISIONS.names():
        problems.append(f"mixed_precision={precision!r}: expected one of {', '.join(PRECISIONS.names())}")
    plugin = given.gradient_accumulation_plugin or GradientAccumulationPlugin()
    problems += plugin.problems()
    if given.gradient_accumulation_steps not in (None, 1) and given.gradient_accumulation_plugin is not None:
        problems.append("gradient_accumulation_steps and gradient_accumulation_plugin: give one of them")
    asked = plugin.num_steps if given.gradient_accumulation_plugin is not None else given.gradient_accumulation_steps
    steps = asked if asked is not None else from_environ.accumulation_steps
    if given.gradient_accumulation_plugin is None and steps is not None:
        problems += wrong_number("gradient_accumulation_steps", steps)
    kinds = _tried(
        lambda: rng_types_of(["generator"] if given.rng_types is None else given.rng_types), list[RNGType](), problems
    )
    handlers = _tried(lambda: Handlers.of(given.kwargs_handlers), Handlers(), problems)
    compilation = _tried(
        lambda: from_names(given.dynamo_backend, given.dynamo_plugin, from_environ.dynamo),
        TorchDynamoPlugin(),
        problems,
    )
    if handlers.ddp.static_graph and steps is not None and steps > 1:
        problems.append(
            f"static_graph=True with gradient_accumulation_steps={steps}: torch must exchange gradients in the first"
            " iteration; leave static_graph out"
        )
    options: dict[str, Any] = {DEEPSPEED: given.deepspeed_plugin, SHARDED: given.fsdp_plugin, WHOLE: handlers.ddp}
    wrong = problems_of(strategy, given.strategy_options)
    problems += wrong
    if given.strategy_options is not None and not wrong:
        if options.get(str(strategy)) not in (None, Handlers().ddp):
            problems.append(f"strategy_options and the options of {strategy} in another argument are given; give one")
        options[str(strategy)] = given.strategy_options
    if isinstance(strategy, str) and options[SHARDED] is not None and strategy not in (AUTO, SHARDED):
        problems.append(f"strategy={strategy!r} and fsdp_plugin contradict each other; give one of them")
    for name, words in ((SHARDED, from_environ.fsdp), (DEEPSPEED, from_environ.deepspeed)):
        if options[name] is None and (strategy == name or (strategy == AUTO and words is not None)):
            options[name] = _tried(partial(options_from_words, name, words or {}), None, problems)
    parallelism: ParallelismConfig | None = given.parallelism_config
    if from_environ.parallelism is not None:
        sizes_of_launcher = partial(_sizes_of_launcher, from_environ.parallelism, parallelism)
        parallelism = _tried(sizes_of_launcher, parallelism, problems)
    options = {name: option for name, option in options.items() if option is not None}
    data = given.dataloader_config or DataLoaderConfiguration()
    data = _tried(partial(of_loaders, data, environ), data, problems)
    data = replace(data, split_batches=given.split_batches or data.split_batches)  # a copy: the user's may change
    sizes = parallelism or ParallelismConfig.from_words({})
    others = Asked(
        precision=precision,
        accumulation_steps=steps,
        strategy=strategy.name if isinstance(strategy, Strategy) else strategy,
        fsdp=SHARDED in options,
        mesh=not sizes.problems() and sizes.total_size > 1,
        scaler_options=bool(handlers.scaler.to_kwargs()),
        ddp_options=bool(handlers.ddp.to_kwargs()),
        split_batches=data.split_batches,
        tensor_plan=sizes.tp_plan,
    )
    for option in options.values():
        if isinstance(option, StrategyOptions):
            contradictions = option.problems(others)
            problems += contradictions
            if not contradictions:
                precision, steps = precision or option.precision, steps or option.accumulation_steps
    problems += options[SHARDED].problems() if SHARDED in options else []
    problems += sizes.problems()
    if problems:
        raise ValueError("Accelerator(...): " + "\n  ".join(dict.fromkeys(problems)))
    return Settings(
        cpu=given.cpu or from_environ.cpu,
        mixed_precision=precision,
        accumulation_steps=1 if steps is None else steps,
        accumulation=plugin,
        handlers=handlers,
        compilation=compilation,
        data=data,
        rng_types=tuple(kinds),
        strategy=strategy,
        options=options,
        asked=replace(others, accumulation_steps=steps),
        parallelism=parallelism,
        recomputation=_recomputation(handlers.recomputation, options.get(SHARDED)),
        device_placement=given.device_placement,
        step_scheduler_with_optimizer=given.step_scheduler_with_optimizer,
        scheduler_once_per_step=given.scheduler_once_per_step,
        as_accelerate=as_accelerate,
    )


def of_loaders(config: DataLoaderConfiguration, environ: Mapping[str, str]) -> DataLoaderConfiguration:
    """Return a configuration of loaders that only warns a program for Accelerate of unlike data sets."""
    if config.check_datasets is True and flag(environ, AS_ACCELERATE):
        return replace(config, check_datasets="warn")
    return config


def _sizes_of_launcher(words: Mapping[str, str], asked: ParallelismConfig | None) -> ParallelismConfig:
    """Return the sizes that the script asks for, or those of the launcher with the plan of the script."""
    if asked is not None and asked != ParallelismConfig(tp_plan=asked.tp_plan):
        return asked
    return replace(ParallelismConfig.from_words(words), tp_plan=asked.tp_plan if asked is not None else None)


def _tried(make: Callable[[], T], otherwise: T, problems: list[str]) -> T:
    try:
        return make()
    except ValueError as error:
        problems.append(str(error))
        return otherwise


def _recomputation(
    handler: ActivationCheckpointingKwargs | None, plugin: FullyShardedDataParallelPlugin | None
) -> FullyShardedDataParallelPlugin | None:
    if handler is not None and (handler.blocks is not None or plugin is None):
        return FullyShardedDataParallelPlugin(
            auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=handler.blocks
        )
    return plugin if handler is not None or (plugin is not None and plugin.activation_checkpointing) else None
