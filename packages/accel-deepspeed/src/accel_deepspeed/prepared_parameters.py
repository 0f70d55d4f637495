"""The parameters that DeepSpeed's engine was given, and what a script has done to them since."""

from __future__ import annotations

from typing import final

from torch import nn


@final
class PreparedParameters:
    """Refuses to train on with parameters that are not those that the engine has divided."""

    def __init__(self, model: nn.Module, stage: int) -> None:
        self._model, self._stage = model, stage
        self._looks = {name: (held, held.requires_grad) for name, held in model.named_parameters()}
        self._marks: dict[str, tuple[int, int]] = {}
        self.note()

    def note(self) -> None:
        """Takes the numbers that are there now as known, as after a step or a load."""
        self._marks = {name: self._mark(held) for name, (held, _) in self._looks.items() if self._stage > 0}

    def check(self) -> None:
        """Refuses changes since `prepare`, and numbers that the next step would overwrite.

        Raises: ValueError that lists them.
        """
        now = dict(self._model.named_parameters())
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

    def _mark(self, parameter: nn.Parameter) -> tuple[int, int]:
        """What tells that a script has written into a parameter; stage 3 itself puts numbers in and takes them out."""
        return parameter._version, parameter.data_ptr() if self._stage < 3 else 0


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
