"""Check DeepSpeed's own config for contradictions, and replace its "auto" values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accel_parallel import Asked

AUTO = "auto"
_SIZES = ("train_micro_batch_size_per_gpu", "train_batch_size")
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def contradictions(said: Mapping[str, Any], config: Mapping[str, Any], asked: Asked) -> list[str]:
    """Return all in which options, config and arguments disagree, or that DeepSpeed cannot do, in words.

    Args:
        said: Options of the plugin by their places in the config.
        config: DeepSpeed's config.
        asked: What the script asks for beside it.
    """
    lines = [
        f"{path} is {value!r} by the plugin's option, and {_at(config, path)!r} in the config; say it once"
        for path, value in said.items()
        if _at(config, path) not in (None, AUTO, value)
    ]
    steps = said.get("gradient_accumulation_steps", _at(config, "gradient_accumulation_steps"))
    if asked.accumulation_steps is not None and steps not in (None, AUTO, asked.accumulation_steps):
        lines.append(
            f"gradient_accumulation_steps is {asked.accumulation_steps} for the Accelerator, and {steps!r} for"
            ' DeepSpeed; say it once, and "auto" in the config'
        )
    lines += _of_precision(said, config, asked)
    lines += _of_stages(said, config)
    excluded = {
        f"strategy={asked.strategy!r}": asked.strategy not in (None, "auto", "deepspeed"),
        "fsdp_plugin": asked.fsdp,
        "parallelism_config with sizes above 1": asked.mesh,
        "GradScalerKwargs (DeepSpeed scales the loss; set the section fp16 of its config)": asked.scaler_options,
        "DistributedDataParallelKwargs (nothing is put into DistributedDataParallel)": asked.ddp_options,
    }
    lines += [f"{what} and DeepSpeed contradict each other; give one of them" for what, is_ in excluded.items() if is_]
    refused = {
        "amp": "apex is not used here; set mixed_precision",
        "torch_autocast": "the Accelerator enters autocast; set mixed_precision",
        "zero3_init_flag": "is not there; build the model under deepspeed.zero.Init(config_dict_or_path=...) instead",
        "enable_msamp": "MS-AMP is not supported; leave it out",
    }
    for name, why in refused.items():
        if name in said or section(config, name).get("enabled") is True:
            lines.append(f"{name}: {why}")
    if _at(config, "managed_gradient_accumulation") is False:
        lines.append("managed_gradient_accumulation=false: accumulate() says where windows end; leave it out")
    return lines


def _of_precision(said: Mapping[str, Any], config: Mapping[str, Any], asked: Asked) -> list[str]:
    lines, switched = [], {name: section(config, name).get("enabled", AUTO) for name in HALF}
    on = [name for name in HALF if switched[name] is True]
    if len(on) == 2:
        lines.append("fp16.enabled and bf16.enabled are both true in the config; choose one of them")
    for name in HALF:
        if asked.precision is not None and switched[name] not in (AUTO, asked.precision == name):
            lines.append(
                f"mixed_precision={asked.precision!r} for the Accelerator, and {name}.enabled is {switched[name]!r} in"
                ' the config; say it once, and "auto" in the config'
            )
    if asked.precision is not None and asked.precision not in ("no", *HALF):
        lines.append(f"mixed_precision={asked.precision!r}: DeepSpeed computes in fp16, bf16 or no")
    half = asked.precision if asked.precision in HALF else next(iter(on), None)
    if half is not None and said.get("zero_optimization.stage", _at(config, "zero_optimization.stage")) == 0:
        lines.append(
            f"ZeRO stage 0 with {half}: DeepSpeed makes a step without gradients before the first there, so numbers"
            " differ from data parallelism; use stage 1, or strategy='ddp'"
        )
    return lines


def _of_stages(said: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    lines, zero = [], "zero_optimization."
    stage = said.get(f"{zero}stage", _at(config, f"{zero}stage"))
    stage = 2 if stage in (None, AUTO) else stage
    if stage not in (0, 1, 2, 3):
        return [f"zero_optimization.stage={stage!r}: expected 0, 1, 2 or 3"]
    for what, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = said.get(f"{zero}{what}.device", _at(config, f"{zero}{what}.device"))
        if device not in (None, AUTO, "none") and stage < least:
            lines.append(f"{what} to {device!r} needs ZeRO stage {least} or more, and the stage is {stage}")
    return lines


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a config, or an empty mapping."""
    inner = config.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


@dataclass(frozen=True, slots=True)
class Known:
    """The facts about what a script has prepared that "auto" values ask for.

    Args:
        world_size: Number of processes.
        accumulation_steps: Micro-batches for each step.
        precision: "fp16", "bf16" or None.
        micro_batch: Samples of a batch of one process; None is unknown.
        hidden_size: Width of the model; None is unknown.
        optimizer: Values of a DummyOptim.
        scheduler: Values of a DummyScheduler.
    """

    world_size: int
    accumulation_steps: int
    precision: str | None
    micro_batch: int | None
    hidden_size: int | None
    optimizer: Mapping[str, Any]
    scheduler: Mapping[str, Any]


def fill(config: dict[str, Any], known: Known) -> dict[str, Any]:
    """Replace the "auto" values of a config, and set what DeepSpeed asks to be told.

    Args:
        config: Config to change in place.
        known: Facts about what was prepared.

    Returns:
        The same config.

    Raises:
        ValueError: Nothing says an "auto" value, or batch sizes do not multiply. The error lists all.
    """
    micro = known.micro_batch or 1
    hidden = known.hidden_size or 0
    per_step = micro * known.accumulation_steps * known.world_size
    values: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": known.accumulation_steps,
        "train_batch_size": per_step,
        "gradient_clipping": 0.0,
        **{f"{name}.enabled": known.precision == name for name in HALF},
        **{f"optimizer.params.{name}": value for name, value in known.optimizer.items()},
        **{f"scheduler.params.{name}": value for name, value in known.scheduler.items()},
    }
    # DeepSpeed's own default clips to 1: here the loop clips, unless the config says a number
    for path in (*_SIZES, "gradient_accumulation_steps", "gradient_clipping"):
        config.setdefault(path, AUTO)
    if known.precision in HALF:
        config.setdefault(known.precision, {}).setdefault("enabled", True)
    buckets = {
        "zero_optimization.reduce_bucket_size": hidden**2,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden**2),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden,
    }
    unknown = _fill(config, "", values | buckets if hidden else values)
    problems = [f'{path} is "auto", and nothing that was prepared says it' for path in unknown if path not in buckets]
    problems += [
        f"{path} is {config[path]!r} in the config, and {values[path]!r} by what was prepared ({how})"
        for path, how in (
            ("train_micro_batch_size_per_gpu", "the batch size of a rank's loader"),
            (
                "train_batch_size",
                f"{micro} samples x {known.accumulation_steps} micro-batches x {known.world_size} ranks",
            ),
        )
        if known.micro_batch is not None and config[path] != values[path]
    ]
    if problems:
        raise ValueError("DeepSpeed's config: " + "\n  ".join(problems))
    if known.micro_batch is None and config["train_batch_size"] == per_step:
        config["train_batch_size"] = (
            config["train_micro_batch_size_per_gpu"] * known.accumulation_steps * known.world_size
        )
    config.setdefault("zero_allow_untested_optimizer", True)
    config.setdefault("zero_force_ds_cpu_optimizer", False)
    config.setdefault("steps_per_print", None)
    return config


def _fill(config: dict[str, Any], prefix: str, values: Mapping[str, Any]) -> list[str]:
    """Remove "auto" values that are unknown, and return their paths."""
    unknown = []
    for name in list(config):
        if isinstance(config[name], dict):
            unknown += _fill(config[name], f"{prefix}{name}.", values)
        elif config[name] == AUTO:
            if f"{prefix}{name}" in values:
                config[name] = values[f"{prefix}{name}"]
            else:
                unknown.append(f"{prefix}{name}")
                del config[name]
    return unknown
