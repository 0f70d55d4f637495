"""Compare each step of a run of plain PyTorch with the records of the run as configured."""

from __future__ import annotations

from pathlib import Path
from typing import final

import torch
from torch.optim import Optimizer

from accel_verify import comparison
from accel_verify.comparison import Mismatch
from accel_verify.reference_loader import CannotVerify
from accel_verify.step_record import AFTER, BEFORE, GRADIENT, StepRecord, read_ends, read_step
from accel_verify.step_watcher import StepWatcher

#: tolerances: near a kink, such as zero before a ReLU, half precision may be on the other side of it, and matrix units
#: of accelerators may round float32
HALF, ACCELERATOR, CPU = 0.2, 5e-3, 1e-4
#: a gradient below this part of the largest is noise, such as the gradient of a bias before a normalisation
NOISE_OF_HALF, NOISE = 0.1, 0.01


@final
class Checker(StepWatcher):
    """The watcher of a run of plain PyTorch that raises Mismatch at the first difference.

    After each step, plain PyTorch continues from the recorded parameters.

    Args:
        folder: Folder with the records of the run as configured.
        steps: Number of steps to compare of each optimizer.
        tolerance: Largest relative difference of a gradient. Default: by precision and device of the recorded run.
    """

    def __init__(self, folder: Path, steps: int, tolerance: float | None = None) -> None:
        super().__init__(steps)
        self._ends = read_ends(folder)
        self.ranks = len(self._ends)
        #: how many of them have samples of their own
        self.data_ranks = self.ranks // self._ends[0].replicas
        self._folder = folder
        half, on_cpu = self._ends[0].precision != "no", self._ends[0].device == "cpu"
        self.tolerance = tolerance if tolerance is not None else HALF if half else CPU if on_cpu else ACCELERATOR
        self._noise = NOISE_OF_HALF if half else NOISE
        #: the largest differences so far, and the words for where a difference would be now
        self.largest = {"losses": 0.0, "gradients": 0.0, "parameters": 0.0}
        self.where = ""
        # the recorded step that is due, and then the same step of plain PyTorch
        self._due: list[StepRecord] = []

    def check_steps(self) -> None:
        """Raise if the recorded run has nothing to compare.

        Raises:
            CannotVerify: The script made no step, prepared no loader, or never called `accelerator.backward`.
        """
        end = self._ends[0]
        if not end.steps:
            raise CannotVerify("the script made no step with what prepare(model, optimizer, loader) returned")
        if self.ranks > 1 and not end.loaders:
            raise CannotVerify("the script prepared no DataLoader: the data of all processes cannot be served in one")
        if not any(read_step(self._folder, 0, number + 1).losses for number in range(end.steps)):
            raise CannotVerify("the script never called accelerator.backward(loss), which is what shares gradients out")

    def skips(self, optimizer: Optimizer) -> bool:
        """Return whether the step that is due was skipped as configured.

        Args:
            optimizer: The optimizer that is about to step.

        Raises:
            Mismatch: The ranks disagree, plain PyTorch makes one step more, or the step was skipped without a cause.
        """
        self.where = f"step {self.made + 1}: "
        if self.made >= self._ends[0].steps:
            raise Mismatch("it is made in plain PyTorch, and not as configured")
        records = [read_step(self._folder, rank, self.made + 1) for rank in range(self.ranks)]
        recorded = comparison.merge_ranks(records, self._ends[0].replicas)
        self._due = [recorded]
        if recorded.skipped:
            comparison.check_window(recorded, self.begin_record(optimizer))
            self.made += 1
            self.skipped.append(self.made)
        return recorded.skipped

    def before_step(self, optimizer: Optimizer) -> None:
        """Compare parameters, losses and gradients, and give the optimizer the recorded gradients."""
        parameters = self.parameters(optimizer)
        self._due.append(self.begin_record(optimizer))
        recorded, plain = self._due
        comparison.check_window(recorded, plain)
        comparison.check_starts(recorded, plain, parameters)
        self._note("losses", comparison.loss_difference(recorded, plain, self.tolerance))
        off = comparison.gradient_difference(recorded, plain, parameters, self.tolerance, self._noise)
        self._note("gradients", off)
        with torch.no_grad():
            for name, parameter in parameters.items():
                gradient = recorded.tensors.get(GRADIENT.format(name))
                if parameter.grad is None or not parameter.grad.is_sparse:
                    parameter.grad = None if gradient is None else gradient.to(parameter.dtype)
                parameter.copy_(recorded.tensors[BEFORE.format(name)])

    def after_step(self, optimizer: Optimizer) -> None:
        """Compare the parameters after the step, and continue from the recorded parameters."""
        (recorded, plain), parameters = self._due, self.parameters(optimizer)
        self.end_record(plain, optimizer)
        comparison.check_settings(recorded.settings, plain.settings)
        self._note("parameters", comparison.update_difference(recorded, plain, parameters))
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(recorded.tensors[AFTER.format(name)])

    def _note(self, what: str, difference: float) -> None:
        self.largest[what] = max(self.largest[what], difference)

    def finish(self) -> None:
        """Compare the numbers of steps and the settings at the end, and check the round trip of the recorded run.

        Raises:
            Mismatch: They differ.
            CannotVerify: All steps were skipped.
        """
        first, self.where = self._ends[0], ""
        steps = [end.steps for end in self._ends]
        if set(steps) != {self.made}:
            made = ", ".join(map(str, steps))
            raise Mismatch(f"optimizer steps: {made} on the ranks as configured, {self.made} in plain PyTorch")
        self.where = f"after step {self.made}: "
        for recorded, optimizer in zip(first.settings, self.optimizers, strict=True):
            comparison.check_settings(recorded, self.settings(optimizer))
        self.where = ""
        if first.changed:
            raise Mismatch(f"a save and load round trip changes {', '.join(first.changed)}")
        if self.made == len(self.skipped):
            raise CannotVerify(f"fp16 skipped all {self.made} steps of the script")
