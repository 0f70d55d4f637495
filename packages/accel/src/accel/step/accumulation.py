"""The gradients of a run: who shares them, and what each loss adds to them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from accel_amp import WindowScaler
from accel_amp.optimizer_parameters import parameters_of

from accel.build import Components
from accel.preparation import Preparer

logger = logging.getLogger("accel")


class GradientAccumulation:
    """What each loss adds to the gradients of its window."""

    def __init__(self, components: Components, preparer: Preparer) -> None:
        self._components = components
        self._accumulation = components.accumulation
        self._preparer = preparer
        self._joining = False
        self._warned: set[str] = set()
        #: whether gradients stay in this process, whatever is due
        self.at_home = False
        self._begin()

    def _begin(self) -> None:
        self.window = WindowScaler(
            self._accumulation,
            self._components.run.transport,
            self._parameters,
            scaled=self._components.precision.policy.scale_loss,
            rescale=self._components.steps.rescale,
        )
        self._agreed: bool | None = None
        #: whether losses have no weights, as all processes agreed, and torch's own backward takes them as they are
        self.plain = False

    def forget(self) -> None:
        """Begins anew, with other models and optimizers."""
        self._accumulation.forget_listeners()
        self._accumulation.reset()
        self._begin()

    def scale_loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> torch.Tensor:
        """What to call backward on, in place of `loss`.

        Raises: ValueError for a weight that cannot be, or that not every process has.
        Collective: where the gradients travel every process must call, with a weight on all or on none.
        """
        preparer, accumulation = self._preparer, self._accumulation
        if not preparer.models:
            self._warn_of_no_model()
        if accumulation.inside:
            accumulation.has_loss = True
        else:
            if accumulation.ends_anywhere is not None:
                raise ValueError(
                    "backward outside of accumulate(), inside join_uneven_inputs with"
                    f" gradient_accumulation_steps={accumulation.every}: ranks agree in accumulate() on the ends of"
                    " windows; put the micro-batch into `with accelerator.accumulate(model):`"
                )
            accumulation.begin_alone()
            if accumulation.every > 1:
                self._say_that_nothing_accumulates()
        if self._agreed is not (weight is not None):
            self._check(weighted=weight is not None)
        return self.window.scale_loss(loss, weight)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Calls the backward of the strategy. Collective: when a step is due every process must call."""
        due = self._accumulation.due and not self.at_home
        self._components.steps.backward(loss, self._preparer.models, self._preparer.optimizers, due=due, **kwargs)

    @contextmanager
    def staying_home(self, no_sync: AbstractContextManager[None]) -> Iterator[None]:
        """In this block, in which gradients do not travel, no weights are added up over processes."""
        with no_sync:
            self.at_home = True
            try:
                yield
            finally:
                self.at_home = False

    @contextmanager
    def joining(self) -> Iterator[None]:
        """In this block processes may be gone, and nothing but the model's own exchanges is made up for."""
        self._joining = True
        try:
            yield
        finally:
            self._joining = False

    def refuse_new_windows(self, steps: int) -> None:
        """Raises: ValueError for another length of windows where ranks may end apart."""
        if self._joining and steps != self._accumulation.every:
            raise ValueError(
                f"gradient_accumulation_steps = {steps} inside join_uneven_inputs: set it before the block, since"
                " ranks agree on it when the block begins"
            )

    def state_dict(self) -> dict[str, Any]:
        """How many steps were due, how many each optimizer has taken, and what the next window needs of the last."""
        taken = [optimizer.steps for optimizer in self._preparer.optimizers]
        return {"steps": self._accumulation.steps, "taken": taken, "window": self.window.state_dict()}

    def problems(self, state: Any) -> list[str]:
        """Why a state cannot be gone on from."""
        whole = isinstance(state, dict) and {"steps", "taken", "window"} <= set(state)
        whole = whole and isinstance(state["window"], dict) and "newest" in state["window"]
        whole = whole and type(state["steps"]) is int and isinstance(state["taken"], list)
        return [] if whole and len(state["taken"]) == len(self._preparer.optimizers) else ["its state is damaged"]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of `state_dict`; a window that has begun is forgotten."""
        self._accumulation.reset()
        self._accumulation.steps = state["steps"]
        for optimizer, taken in zip(self._preparer.optimizers, state["taken"], strict=True):
            optimizer.steps = taken
        self.window.load_state_dict(state["window"])

    def _check(self, *, weighted: bool) -> None:
        """Collective: every process must call, at the end of the first window."""
        if self._preparer.models:
            self._warn_of_no_loader()
        if weighted and self._joining:
            raise ValueError(
                "backward: weights are added up over all processes, and inside join_uneven_inputs some may have ended;"
                ' use ending="exact" or "pad" for loaders of unequal lengths'
            )
        if weighted and not self._preparer.models and self._components.run.topology.world_size > 1:
            raise ValueError("backward: a weight is shared with all processes, and no model was prepared to share with")
        if self._agreed is None and self._accumulation.due and self._preparer.models and not self._joining:
            votes = self._components.run.transport.all_gather_objects(weighted)
            if len(set(votes)) > 1:
                have = ", ".join(str(rank) for rank, has_weight in enumerate(votes) if has_weight)
                raise ValueError(
                    f"backward: processes {have} gave a weight and the others did not; give each loss its weight on all"
                    f" {len(votes)} processes, or on none"
                )
            self._agreed = weighted
            self.plain = not weighted and self._components.scaler is None
        elif self._agreed is not None and self._agreed != weighted:
            before = "had weights" if self._agreed else "had none"
            raise ValueError(
                f"backward: losses before this one {before}; give each its weight (1 for one that is a mean), or none"
            )

    def _warn_of_no_model(self) -> None:
        """Says once that gradients do not travel, when there are processes for them to travel between."""
        if self._components.run.topology.world_size > 1:
            self._say_once(
                "rank %d: backward() before any model was prepared: each process trains a model of its own; pass the"
                " model to accelerator.prepare",
                self._components.run.topology.rank,
            )

    def _warn_of_no_loader(self) -> None:
        """Says once that no loader divides the data, when there are processes to divide it over."""
        ranks = self._components.run.mesh.data_size
        divided = ranks == 1 or self._preparer.loaders or self._accumulation.active is not None
        if not divided and self._components.run.topology.rank == 0:
            self._say_once(
                "backward() before any loader was prepared: unless the script divides its data, each of the %d"
                " processes trains on all of it; pass the DataLoader to accelerator.prepare",
                ranks,
            )

    def _say_that_nothing_accumulates(self) -> None:
        if self._components.run.topology.rank == 0:
            self._say_once(
                "gradient_accumulation_steps=%d, and backward() outside of accumulate(): each loss is divided by it,"
                " and each optimizer.step() steps; put micro-batches into `with accelerator.accumulate(model):`",
                self._accumulation.every,
            )

    def _say_once(self, words: str, number: int) -> None:
        if words not in self._warned:
            self._warned.add(words)
            logger.warning(words, number)

    def _parameters(self) -> Iterator[torch.Tensor]:
        for model in self._preparer.models:
            yield from model.parameters()
        for optimizer in self._preparer.optimizers:
            yield from parameters_of(optimizer)
