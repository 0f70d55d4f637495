"""Check the parameters that DeepSpeed's engine was given for what a script has done to them since."""

from __future__ import annotations

import logging
from typing import Any, final

from torch import nn

logger = logging.getLogger("accel")


@final
class PreparedParameters:
    """A check that the engine trains the parameters that it was given.

    Args:
        model: Model in the engine.
        stage: Stage of ZeRO.
    """

    def __init__(self, model: nn.Module, stage: int) -> None:
        self._model, self._stage = model, stage
        self._looks = {name: (held, held.requires_grad) for name, held in model.named_parameters()}
        self._marks: dict[str, tuple[int, int]] = {}
        # DeepSpeed has hooks of its own
        self._hooks = {name: _count_hooks(held) for name, held in model.named_parameters()}
        self._warned = False
        self.note()

    def note(self) -> None:
        """Take the values that are there now as known, as after a step or a load."""
        self._marks = {name: self._mark(held) for name, (held, _) in self._looks.items() if self._stage > 0}

    def check(self) -> None:
        """Raise for changes since `prepare`, and for values that the next step would overwrite.

        A hook of a gradient gets a warning, once: DeepSpeed averages gradients after it.

        Raises:
            ValueError: There are such changes. The error lists them.
        """
        now = dict(self._model.named_parameters())
        self._warn_of_hooks(now)
        changed = [name for name, (held, trained) in self._looks.items() if held.requires_grad is not trained]
        changed += [name for name, held in now.items() if name not in self._looks and held.requires_grad]
        changed += [f"{name} (gone)" for name in self._looks if name not in now]
        if changed:
            raise ValueError(
                f"backward: {_some(changed)} were frozen, unfrozen, added or taken out after prepare, and DeepSpeed's"
                " engine trains the parameters that it was given then; change the model before prepare, or use"
                " strategy='fsdp2'"
            )
        written = [name for name, mark in self._marks.items() if mark != self._mark(self._looks[name][0])]
        if written:
            raise ValueError(
                f"backward: {_some(written)} were written into, and DeepSpeed steps float32 copies of them, which it"
                " would put over these numbers; load them by accelerator.unwrap_model(model).load_state_dict(...)"
            )

    def _warn_of_hooks(self, now: dict[str, nn.Parameter]) -> None:
        if self._warned:
            return
        hooked = [name for name, held in now.items() if _count_hooks(held) > self._hooks.get(name, 0)]
        if hooked:
            self._warned = True
            logger.warning(
                "hooks of the gradients of %s: beside DeepSpeed they have the gradients of their process, before all"
                " are averaged. A hook that multiplies is exact, a hook that clips or steps is not: use"
                " accelerator.clip_grad_norm_, or strategy='fsdp2'",
                _some(hooked),
            )

    def _mark(self, parameter: nn.Parameter) -> tuple[int, int]:
        """Return what tells that a script has written into a parameter. Stage 3 itself moves values in and out."""
        return parameter._version, parameter.data_ptr() if self._stage < 3 else 0


def _count_hooks(parameter: Any) -> int:  # torch has given hooks no types
    return len(parameter._backward_hooks or ()) + len(parameter._post_accumulate_grad_hooks or ())


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
