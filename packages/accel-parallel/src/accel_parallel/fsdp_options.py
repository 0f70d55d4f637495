"""Declare the options of `fully_shard`, by the names that scripts use for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from accel_state.environ import AS_ACCELERATE, FALSE, TRUE, flag, process_environ
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from accel_parallel.wrap_policy import large_blocks, transformer_blocks

#: names of Accelerate's FSDP1 with the way to say the same thing now, or why there is nothing to say
FSDP1_ONLY = {
    "sharding_strategy": "FULL_SHARD and SHARD_GRAD_OP are here; for HYBRID_SHARD say"
    " ParallelismConfig(dp_replicate_size=..., dp_shard_size=...); for NO_SHARD leave the plugin out",
    "use_orig_params": "parameters always keep their names and kinds; leave it out",
    "sync_module_states": "weights are always those of rank 0; leave it out",
    "limit_all_gathers": "memory is bounded without it; leave it out",
    "param_init_fn": "build the model on the meta device and load its weights after prepare; leave it out",
}
#: the values of FSDP1 options that change nothing here
_HARMLESS = {"use_orig_params": True, "sync_module_states": True, "limit_all_gathers": True}
#: strategies of FSDP1 that say whether a block is freed after its forward
_RESHARD = {"FULL_SHARD": True, "1": True, "SHARD_GRAD_OP": False, "2": False}
POLICIES = ("transformer_based_wrap", "size_based_wrap", "no_wrap")
STATE_DICT_TYPES = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")


def _of_variable(name: str, default: Any) -> Any:
    """Return the value of an option of which a script says nothing: that of Accelerate's variable, or the default."""
    variable, read, environ = _VARIABLES[name], _READ[name], process_environ()
    if not flag(environ, AS_ACCELERATE):
        return default
    # FSDP2 of Accelerate ignores the strategy, and its launcher sets both
    if name == "reshard_after_forward" and environ.get("FSDP_VERSION") != "2" and environ.get(_STRATEGY):
        variable, read = _STRATEGY, _reshards
    word = environ.get(variable)
    try:
        return read(word) if word else default
    except ValueError as error:
        raise ValueError(f"{variable}={word}: {error}") from None


@dataclass
class FullyShardedDataParallelPlugin:
    """The options of sharding, by which parameters are sharded over processes, block by block.

    Parameters are gathered for a forward, one block at a time. If a model has no blocks by these options, each forward
    gathers the whole model at once, and a warning says so: name the classes of its blocks.

    In a program for Accelerate, an option that is left out is that of its variable, such as FSDP_STATE_DICT_TYPE.

    Args:
        fsdp_version: 2. With 1 the model is sharded in the same way.
        reshard_after_forward: Whether a gathered block is freed after its forward. An int is the number of ranks that
            share it then.
        auto_wrap_policy: How blocks are chosen: "transformer_based_wrap", "size_based_wrap", "no_wrap", or a function
            that returns the blocks of a model.
        transformer_cls_names_to_wrap: Names of the classes of blocks. By default those in `_no_split_modules`, which
            models of Transformers have, or else the modules of each list (`nn.ModuleList`, `nn.Sequential`) with
            several modules, all of one class.
        min_num_params: With "size_based_wrap", the smallest number of parameters of a block, not of bytes.
        cpu_offload: Whether parameters and optimizer states are on the CPU.
        activation_checkpointing: Whether the backward computes the activations of each block again.
        ignored_modules: Modules, or a pattern of their names, that stay whole on every rank.
        find_unused_parameters: Whether ranks may use different parameters in a step, such as experts. Parameters that
            no rank uses have zeros as gradients then.
        mixed_precision_policy: torch's dtypes, instead of those of `mixed_precision`.
        forward_methods: Methods that find all weights gathered. By default `generate`, if the model has it. Other
            public methods gather them when they call a module.
        state_dict_type: "SHARDED_STATE_DICT" or "FULL_STATE_DICT". Has no effect: checkpoints have a part of each rank,
            and `save_model` writes whole weights.
        cpu_ram_efficient_loading: Whether ranks other than 0 may have the model on the meta device.
        sharding_strategy: FSDP1's "FULL_SHARD" or "SHARD_GRAD_OP", which set `reshard_after_forward`.
        backward_prefetch: Ignored, as torch prefetches by itself.
        forward_prefetch: Ignored, as torch prefetches by itself.
        use_orig_params: Option of FSDP1, which may only say what holds anyway.
        sync_module_states: Option of FSDP1, which may only say what holds anyway.
        limit_all_gathers: Option of FSDP1, which may only say what holds anyway.
        param_init_fn: Option of FSDP1, which is refused with what to do instead.
    """

    fsdp_version: int = 2
    reshard_after_forward: bool | int = field(default_factory=partial(_of_variable, "reshard_after_forward", True))
    auto_wrap_policy: str | Callable[[nn.Module], Sequence[nn.Module]] = field(
        default_factory=partial(_of_variable, "auto_wrap_policy", "transformer_based_wrap")
    )
    transformer_cls_names_to_wrap: Sequence[str] | None = field(
        default_factory=partial(_of_variable, "transformer_cls_names_to_wrap", None)
    )
    min_num_params: int = field(default_factory=partial(_of_variable, "min_num_params", 100_000_000))
    cpu_offload: bool = field(default_factory=partial(_of_variable, "cpu_offload", False))
    activation_checkpointing: bool = field(default_factory=partial(_of_variable, "activation_checkpointing", False))
    ignored_modules: Sequence[nn.Module] | str | None = field(
        default_factory=partial(_of_variable, "ignored_modules", None)
    )
    find_unused_parameters: bool = False
    mixed_precision_policy: MixedPrecisionPolicy | None = None
    forward_methods: Sequence[str] | None = None
    state_dict_type: str = field(default_factory=partial(_of_variable, "state_dict_type", "SHARDED_STATE_DICT"))
    cpu_ram_efficient_loading: bool = field(default_factory=partial(_of_variable, "cpu_ram_efficient_loading", False))
    sharding_strategy: Any = None
    backward_prefetch: Any = None
    forward_prefetch: Any = None
    use_orig_params: bool | None = None
    sync_module_states: bool | None = None
    limit_all_gathers: bool | None = None
    param_init_fn: Any = None

    def __post_init__(self) -> None:
        strategy = str(getattr(self.sharding_strategy, "name", self.sharding_strategy)).upper()
        if strategy in _RESHARD:
            self.reshard_after_forward, self.sharding_strategy = _RESHARD[strategy], None

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> FullyShardedDataParallelPlugin:
        """Return the plugin for the entries of `fsdp_config` in a config file.

        Raises:
            ValueError: Names are not known, or have no such values. The message lists all.
        """
        options, problems = dict[str, Any](), []
        for word, value in words.items():
            name = _FIELD_OF.get(word, word)
            read = _READ.get(name)
            if read is None:
                problems.append(f"fsdp_config: unknown name {word!r}; expected some of {', '.join(_READ)}")
                continue
            try:
                options[name] = read(value)
            except ValueError as error:
                problems.append(f"fsdp_config: {word}={value}: {error}")
        if problems:
            raise ValueError("; ".join(problems))
        return cls(**options)

    def problems(self) -> list[str]:
        """List what is wrong with the options."""
        lines = []
        if self.fsdp_version not in (1, 2):
            lines.append(f"fsdp_version={self.fsdp_version!r}: expected 2; 1 runs as 2")
        for name, instead in FSDP1_ONLY.items():
            value = getattr(self, name)
            if value not in (None, False) and value != _HARMLESS.get(name):
                lines.append(f"{name}={value!r} is an option of FSDP1: {instead}")
        if isinstance(self.auto_wrap_policy, str) and self.auto_wrap_policy.lower() not in POLICIES:
            known = ", ".join(POLICIES)
            lines.append(f"auto_wrap_policy={self.auto_wrap_policy!r}: expected one of {known}, or a function")
        if self.state_dict_type not in STATE_DICT_TYPES:
            lines.append(f"state_dict_type={self.state_dict_type!r}: expected one of {', '.join(STATE_DICT_TYPES)}")
        if isinstance(self.reshard_after_forward, str):
            asked = self.reshard_after_forward
            lines.append(f"reshard_after_forward={asked!r}: expected True, False or a number of ranks")
        if type(self.min_num_params) is not int or self.min_num_params < 1:
            lines.append(f"min_num_params={self.min_num_params!r}: expected a whole number of at least 1")
        if not isinstance(self.mixed_precision_policy, MixedPrecisionPolicy | None):
            given = self.mixed_precision_policy
            lines.append(f"mixed_precision_policy={given!r}: expected torch.distributed.fsdp.MixedPrecisionPolicy(...)")
        return lines

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules that are gathered or recomputed one at a time, in the order of the model, itself left out.

        Raises:
            UnknownBlocks: The model has no module of a class that is named.
        """
        policy = self.auto_wrap_policy
        if callable(policy):
            chosen = list(policy(model))
        elif policy.lower() == "size_based_wrap":
            chosen = large_blocks(model, self.min_num_params)
        elif policy.lower() == "no_wrap":
            chosen = []
        else:
            chosen = transformer_blocks(model, self.transformer_cls_names_to_wrap)
        wanted = {id(block) for block in chosen}
        return [module for module in model.modules() if id(module) in wanted and module is not model]

    def set_auto_wrap_policy(self, model: nn.Module) -> None:
        """Note the classes of the blocks of a model, if they are those of a transformer.

        Raises:
            UnknownBlocks: The model has no module of a class that is named.
        """
        if str(self.auto_wrap_policy).lower() == "transformer_based_wrap":
            self.transformer_cls_names_to_wrap = sorted({type(block).__name__ for block in self.blocks(model)})

    def set_state_dict_type(self, state_dict_type: str | None = None) -> None:
        """Change how weights are saved, to "SHARDED_STATE_DICT" or "FULL_STATE_DICT"."""
        self.state_dict_type = state_dict_type or self.state_dict_type

    def ignored(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules of a model that stay whole on every rank.

        Raises:
            ValueError: The pattern is no name of a module, or modules are not of the model.
        """
        asked, named = self.ignored_modules or (), dict(model.named_modules())
        if isinstance(asked, str):
            matching = [module for name, module in named.items() if re.fullmatch(asked, name)]
            strange = [] if matching else [asked]
        else:
            inside = {id(module) for module in named.values()}
            matching, strange = list(asked), [type(module).__name__ for module in asked if id(module) not in inside]
        if strange:
            raise ValueError(f"ignored_modules: {type(model).__name__} has no {', '.join(strange)}")
        return matching


def _truth(word: str) -> bool:
    if word.lower() not in TRUE + FALSE:
        raise ValueError("expected true or false")
    return word.lower() in TRUE


def _reshards(strategy: str) -> bool:
    if strategy.upper() not in _RESHARD:
        raise ValueError(FSDP1_ONLY["sharding_strategy"])
    return _RESHARD[strategy.upper()]


def _truth_or_number(word: str) -> bool | int:
    if word.upper() in _RESHARD and not word.isdecimal():
        return _RESHARD[word.upper()]
    return int(word) if word.isdecimal() and int(word) > 1 else _truth(word)


def _number(word: str) -> int:
    if not word.isdecimal():
        raise ValueError("expected a whole number")
    return int(word)


def _names(word: str) -> list[str]:
    return [name.strip() for name in word.split(",") if name.strip()]


#: words of config files for fields
_FIELD_OF = {"transformer_layer_cls_to_wrap": "transformer_cls_names_to_wrap", "offload_params": "cpu_offload"}
#: readers by field; the launcher passes on the entries in `ENTRIES` of accel_launch/config/option_entries.py
_READ: Mapping[str, Callable[[str], Any]] = {
    "reshard_after_forward": _truth_or_number,
    "auto_wrap_policy": str.lower,
    "transformer_cls_names_to_wrap": _names,
    "min_num_params": _number,
    "cpu_offload": _truth,
    "activation_checkpointing": _truth,
    "state_dict_type": str.upper,
    "cpu_ram_efficient_loading": _truth,
    "ignored_modules": str,
    "sharding_strategy": str.upper,
}
#: variables of Accelerate by field
_VARIABLES = {
    "reshard_after_forward": "FSDP_RESHARD_AFTER_FORWARD",
    "auto_wrap_policy": "FSDP_AUTO_WRAP_POLICY",
    "transformer_cls_names_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "min_num_params": "FSDP_MIN_NUM_PARAMS",
    "cpu_offload": "FSDP_OFFLOAD_PARAMS",
    "activation_checkpointing": "FSDP_ACTIVATION_CHECKPOINTING",
    "ignored_modules": "FSDP_IGNORED_MODULES",
    "state_dict_type": "FSDP_STATE_DICT_TYPE",
    "cpu_ram_efficient_loading": "FSDP_CPU_RAM_EFFICIENT_LOADING",
}
_STRATEGY = "FSDP_SHARDING_STRATEGY"
