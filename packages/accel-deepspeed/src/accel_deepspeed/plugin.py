"""Describe what a script asks of DeepSpeed, by the names that scripts use for it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from accel_parallel import Asked, StrategyOptions

from accel_deepspeed.config import AUTO, contradictions, section

#: the stage of ZeRO if neither the plugin nor its config says one
USUAL_STAGE = 2
DEVICES = ("none", "cpu", "nvme")
_PATHS = ("hf_ds_config", "offload_optimizer_nvme_path", "offload_param_nvme_path", "transformer_moe_cls_names")
#: the names of config files that are not those of fields
_RENAMED = {
    "deepspeed_config_file": "hf_ds_config",
    "deepspeed_moe_layer_cls_names": "transformer_moe_cls_names",
}


@final
@dataclass
class DeepSpeedPlugin(StrategyOptions):
    """The options of DeepSpeed, which spreads optimizer states (ZeRO 1), gradients (2) and parameters (3).

    An option that is None says nothing: then the config decides, and then DeepSpeed's default (ZeRO 2).

    Args:
        hf_ds_config: DeepSpeed's own config, a JSON file or a dict. Its "auto" values are filled from what is prepared.
        gradient_accumulation_steps: Micro-batches for each step.
        gradient_clipping: Norm to clip gradients to.
        zero_stage: Stage of ZeRO. 0 is plain data parallelism.
        is_train_batch_min: Whether the smallest batch size of several loaders counts. False takes the largest.
        offload_optimizer_device: Where optimizer states are: "none", "cpu" or "nvme".
        offload_param_device: Where parameters are: "none", "cpu" or "nvme".
        offload_optimizer_nvme_path: Folder for optimizer states on "nvme".
        offload_param_nvme_path: Folder for parameters on "nvme".
        zero3_init_flag: True is refused, and the message says what to do instead.
        zero3_save_16bit_model: Whether DeepSpeed gathers 16-bit weights when it saves.
        transformer_moe_cls_names: Classes of mixture-of-experts layers that are not divided, with commas in between.
        enable_msamp: True is refused, as MS-AMP is not supported.
        msamp_opt_level: Ignored, as MS-AMP is not supported.
    """

    hf_ds_config: str | Path | Mapping[str, Any] | None = None
    gradient_accumulation_steps: int | str | None = None
    gradient_clipping: float | str | None = None
    zero_stage: int | None = None
    is_train_batch_min: bool = True
    offload_optimizer_device: str | None = None
    offload_param_device: str | None = None
    offload_optimizer_nvme_path: str | None = None
    offload_param_nvme_path: str | None = None
    zero3_init_flag: bool | None = None
    zero3_save_16bit_model: bool | None = None
    transformer_moe_cls_names: str | None = None
    enable_msamp: bool = False
    msamp_opt_level: str = "O1"

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> DeepSpeedPlugin:
        """Return the plugin for the entries of `deepspeed_config` in a config file.

        Raises:
            ValueError: Names are not known. The message lists them.
        """
        options = {_RENAMED.get(name, name): value for name, value in words.items()}
        words_of = {field: word for word, field in _RENAMED.items()}
        known = [words_of.get(field.name, field.name) for field in fields(cls)]
        unknown = [name for name in words if name not in known]
        if unknown:
            raise ValueError(
                f"deepspeed_config: unknown names {', '.join(unknown)}; expected some of {', '.join(known)}"
            )
        # a path is a word, whatever it looks like
        values: dict[str, Any] = {
            name: value if name in _PATHS else _number(value.lower()) for name, value in options.items()
        }
        return cls(**values)

    def problems(self, asked: Asked) -> list[str]:
        """List all that is wrong with the options, by themselves and beside what else was asked for."""
        try:
            given = self._given()
        except ValueError as error:
            return [str(error)]
        devices = {
            "offload_optimizer_device": self.offload_optimizer_device,
            "offload_param_device": self.offload_param_device,
        }
        lines = [
            f"{name}={device!r}: expected one of {', '.join(DEVICES)}"
            for name, device in devices.items()
            if device not in (None, *DEVICES)
        ]
        return lines + contradictions(self._said(), given, asked)

    def config(self) -> dict[str, Any]:
        """Return DeepSpeed's config with what the options say. Its "auto" values are not filled yet.

        Raises:
            ValueError: The file cannot be read.
        """
        config = copy.deepcopy(dict(self._given()))
        for path, value in self._said().items():
            *outer, name = path.split(".")
            inner = config
            for key in outer:
                inner = inner.setdefault(key, {})
            if inner.get(name, AUTO) == AUTO:
                inner[name] = value
        zero = config.setdefault("zero_optimization", {})
        if zero.get("stage", AUTO) == AUTO:
            zero["stage"] = USUAL_STAGE
        for device, nvme_path in (
            ("offload_optimizer", self.offload_optimizer_nvme_path),
            ("offload_param", self.offload_param_nvme_path),
        ):
            if nvme_path is not None:
                zero.setdefault(device, {}).setdefault("nvme_path", nvme_path)
        return config

    @property
    def accumulation_steps(self) -> int | None:
        """The micro-batches for each step that the options or the config say."""
        steps: int | None = _unless_auto(self.config().get("gradient_accumulation_steps"))
        return steps

    @property
    def precision(self) -> str | None:
        """The precision that the config switches on."""
        config = self.config()
        return next((name for name in ("fp16", "bf16") if section(config, name).get("enabled") is True), None)

    def _said(self) -> dict[str, Any]:
        """Return what the options say, by its path in DeepSpeed's config."""
        said = {
            "zero_optimization.stage": self.zero_stage,
            "gradient_accumulation_steps": _unless_auto(self.gradient_accumulation_steps),
            "gradient_clipping": _unless_auto(self.gradient_clipping),
            "zero_optimization.offload_optimizer.device": self.offload_optimizer_device,
            "zero_optimization.offload_param.device": self.offload_param_device,
            "zero_optimization.stage3_gather_16bit_weights_on_model_save": self.zero3_save_16bit_model,
            "zero3_init_flag": self.zero3_init_flag or None,
            "enable_msamp": self.enable_msamp or None,
        }
        return {path: value for path, value in said.items() if value is not None}

    def _given(self) -> Mapping[str, Any]:
        """Return the config as the script gave it, or raise if it is a file that is no JSON object."""
        if self.hf_ds_config is None:
            return {}
        if isinstance(self.hf_ds_config, Mapping):
            return self.hf_ds_config
        try:
            read = json.loads(Path(self.hf_ds_config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"hf_ds_config={str(self.hf_ds_config)!r} cannot be read: {error}") from None
        if not isinstance(read, dict):
            raise ValueError(
                f"hf_ds_config={str(self.hf_ds_config)!r} holds a {type(read).__name__}: expected a JSON object"
            )
        return read


def _unless_auto(value: Any) -> Any:
    return None if value == AUTO else _number(value)


def _number(value: Any) -> Any:
    """Return the number that a launcher wrote as a word."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
