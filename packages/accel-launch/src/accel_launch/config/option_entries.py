"""Read the options that have entries, in files and flags, and FSDP1's other words for them.

Source:
    shared/reference/accelerate-api.md, sections 1.12 and 1.13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accel_launch.cli.suggest import did_you_mean

if TYPE_CHECKING:
    from accel_launch.cli.options import LaunchSettings

#: names by option; in files and flags of Accelerate a prefix comes before them. The scripts read the values: those of
#: fsdp_config by `_READ` in accel_parallel/fsdp_options.py
ENTRIES = {
    "fsdp_config": (
        "version",
        "reshard_after_forward",
        "auto_wrap_policy",
        "transformer_layer_cls_to_wrap",
        "min_num_params",
        "offload_params",
        "activation_checkpointing",
        "state_dict_type",
        "cpu_ram_efficient_loading",
        "sharding_strategy",
        "backward_prefetch",
        "forward_prefetch",
        "use_orig_params",
        "sync_module_states",
    ),
    "deepspeed_config": (
        "deepspeed_config_file",
        "zero_stage",
        "gradient_clipping",
        "gradient_accumulation_steps",
        "offload_optimizer_device",
        "offload_param_device",
        "offload_optimizer_nvme_path",
        "offload_param_nvme_path",
        "zero3_init_flag",
        "zero3_save_16bit_model",
        "deepspeed_moe_layer_cls_names",
        "deepspeed_multinode_launcher",
    ),
    "parallelism_config": (
        "dp_replicate_size",
        "dp_shard_size",
        "tp_size",
        "cp_size",
        "sp_size",
        "cp_backend",
        "cp_comm_strategy",
        "sp_backend",
        "sp_seq_length",
        "sp_seq_length_is_variable",
        "sp_attn_implementation",
    ),
    "dynamo_config": ("backend", "mode", "use_fullgraph", "use_dynamic", "use_regional_compilation"),
}
PREFIX = {
    "fsdp_config": "fsdp_",
    "deepspeed_config": "",
    "parallelism_config": "parallelism_config_",
    "dynamo_config": "dynamo_",
}
#: entries whose flags take no value
SWITCHES = ("use_fullgraph", "use_dynamic", "use_regional_compilation")
#: the modes of torch.compile
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
#: what fully_shard and accel launch do by themselves, whatever a file says
_BY_ITSELF = (
    "version",
    "backward_prefetch",
    "forward_prefetch",
    "use_orig_params",
    "sync_module_states",
    "deepspeed_multinode_launcher",
)
#: how FSDP1's strategies, by name or number, say whether blocks are freed after their forward
_RESHARD = {"FULL_SHARD": "true", "1": "true", "SHARD_GRAD_OP": "false", "2": "false"}
_HYBRID = ("HYBRID_SHARD", "4", "HYBRID_SHARD_ZERO2", "5")


def normalised(option: str, given: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the entries of an option without prefixes and in the words of FSDP2, and the problems of the others."""
    entries: dict[str, str] = {}
    problems = []
    for name, value in given.items():
        short = name.removeprefix(PREFIX[option])
        if short not in ENTRIES[option]:
            problems.append(f"unknown name {name!r}{did_you_mean(short, ENTRIES[option])}")
        elif value.lower() not in ("", "none", "null"):
            entries[short] = value
    if option == "parallelism_config":
        sizes = {name: value for name, value in entries.items() if name.endswith("_size")}
        wrong = [name for name, value in sizes.items() if not value.isdecimal() or int(value) < 1]
        problems += [f"{name}={sizes[name]}: expected a whole number of at least 1" for name in wrong]
        # a mesh has one place along an axis of size 1
        if set(sizes.values()) <= {"1"}:
            return {}, problems
        # what is said of sequences counts if they are divided
        of_sequences = {name: entries[name] for name in entries if sizes.get(f"{name[:2]}_size", "1") != "1"}
        return sizes | of_sequences, problems
    if option == "dynamo_config":
        return _of_compiler(entries, problems)
    strategy = entries.pop("sharding_strategy", "").upper()
    if strategy in _RESHARD:
        entries["reshard_after_forward"] = _RESHARD[strategy]
    elif strategy in _HYBRID:
        problems.append(f"sharding_strategy={strategy}: say dp_replicate_size and dp_shard_size instead")
    elif strategy:
        problems.append(f"sharding_strategy={strategy}: expected FULL_SHARD or SHARD_GRAD_OP; else leave FSDP out")
    return {name: value for name, value in entries.items() if name not in _BY_ITSELF}, problems


def _of_compiler(entries: Mapping[str, str], problems: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the entries for torch.compile, none if nothing is compiled, and the problems."""
    wanted = {name: value.lower() for name, value in entries.items()}
    for name, value in wanted.items():
        if name == "mode" and value not in MODES:
            problems.append(f"mode={value}: expected one of {', '.join(MODES)}")
        elif name in SWITCHES and value not in ("true", "false"):
            problems.append(f"{name}={value}: expected true or false")
    asked = {name: value for name, value in wanted.items() if value not in ("false", "default")}
    if asked.pop("backend", "no") == "no":
        problems += [
            f"{name}={value}, and nothing is compiled: add --dynamo_backend inductor" for name, value in asked.items()
        ]
        return {}, problems
    return wanted, problems


def sharding_problems(settings: LaunchSettings, count: int) -> list[str]:
    """Return why so many processes cannot share the work as the settings ask."""
    ways = {
        "fsdp": (settings.use_fsdp, settings.fsdp_config),
        "deepspeed": (settings.use_deepspeed, settings.deepspeed_config),
    }
    problems = [
        f"{way}_config says how models are sharded, and nothing asks for it: add --use_{way}"
        for way, (asked, config) in ways.items()
        if config and not asked
    ]
    if settings.use_fsdp and settings.use_deepspeed:
        problems.append("--use_fsdp and --use_deepspeed contradict each other: choose one of them")
    entries = (settings.parallelism_config or {}).items()
    sizes = {name: size for name, size in entries if name.endswith("_size")}
    wanted = math.prod(map(int, sizes.values()))
    if sizes and wanted != count:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        problems.append(f"parallelism_config is for {wanted} processes ({product}), and {count} would start")
    return problems
