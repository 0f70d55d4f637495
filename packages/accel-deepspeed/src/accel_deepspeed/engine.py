"""Run backwards and steps by DeepSpeed's engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from accel_amp import AcceleratedOptimizer, LossScaler, PrecisionPolicy
from accel_comm import Transport
from accel_parallel import Steps, refuse_second_graph
from accel_state import Run
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from accel_deepspeed.config import HALF, Known, fill
from accel_deepspeed.norms import multiply, norm_of, scaled_norm
from accel_deepspeed.plugin import DeepSpeedPlugin
from accel_deepspeed.prepared_parameters import PreparedParameters
from accel_deepspeed.prepared_together import PreparedTogether, hidden_size
from accel_deepspeed.stand_ins import DummyScheduler, EngineSchedule
from accel_deepspeed.whole_state import WholeOptimizer, parts_of, show_whole_weights

logger = logging.getLogger("accel")

_EVERY_BACKWARD = "DeepSpeed's engine reduces gradients in its own backward; "


@final
class DeepSpeedSteps(Steps):
    """A model and its optimizer in an engine of DeepSpeed, whose windows are those of the Accelerator.

    Args:
        plugin: Options of DeepSpeed.
        accumulation_steps: Micro-batches for each step.
        split_batches: Whether a loader's batch is for all processes together.
    """

    refusals: ClassVar[Mapping[str, str]] = {
        "no_sync": f"{_EVERY_BACKWARD}gather micro-batches with accumulate() and gradient_accumulation_steps",
        "trigger_sync_in_backward": f"{_EVERY_BACKWARD}leave it out, with the no_sync that it belongs to",
        "add_param_group": "DeepSpeed's engine has divided the parameters that it was given; give the optimizer all"
        " that will ever be trained before prepare, or use strategy='fsdp2'",
        "clip_grad_value_": f"{_EVERY_BACKWARD}they are not in the parameters; use clip_grad_norm_",
    }

    def __init__(self, plugin: DeepSpeedPlugin, *, accumulation_steps: int, split_batches: bool) -> None:
        self.plugin = plugin
        self._accumulation_steps = accumulation_steps
        self._split_batches = split_batches
        #: DeepSpeed's own engine, from the time when its model was prepared
        self.core: Any = None
        self._given: Optimizer | None = None
        self._met = PreparedTogether.of(())
        self._stage, self._clipping = 0, 0.0
        # whether a step has been seen to change parameters
        self._proven = False
        self._whole_optimizer: WholeOptimizer | None = None
        # whether there are gradients that had no step, and whether ranks have shared all of them
        self._gathered = self._shared = False
        self._prepared: PreparedParameters | None = None
        # by what all gradients of the window are still to be multiplied
        self._factor = 1.0

    def meet(self, objects: Sequence[Any], models: Sequence[nn.Module]) -> None:
        """Record the optimizers, schedules and batch sizes of loaders that are prepared together.

        Args:
            objects: Arguments of `prepare`.
            models: Models among them.
        """
        self._met = PreparedTogether.of(objects)

    def start(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """Put a model into DeepSpeed's engine.

        Args:
            model: Model to train.
            run: The current run.
            policy: Dtypes of forwards.

        Returns:
            The engine.

        Raises:
            ValueError: Options, config and what was prepared do not go together. The message lists all.

        Collective:
            Every rank must call.
        """
        import deepspeed

        problems = self._met.problems(model)
        if self.core is not None:
            problems.append("it trains one model for each Accelerator; make another Accelerator for the second")
        if problems:
            raise ValueError(f"DeepSpeed cannot train this {type(model).__name__}: " + "\n  ".join(problems))
        optimizer, made_by_config = self._met.optimizers[0], self._met.has_stand_in
        config = fill(self.plugin.config(), self._known(model, run, policy))
        problems = self._met.problems_of_sections(config)
        if problems:
            raise ValueError("DeepSpeed's config: " + "\n  ".join(problems))
        if self.plugin.transformer_moe_cls_names is not None:
            names = [name.strip() for name in self.plugin.transformer_moe_cls_names.split(",")]
            deepspeed.utils.set_z3_leaf_modules(model, names)
        schedule = self._met.schedule
        groups = [list(group["params"]) for group in optimizer.param_groups if group["params"]]
        dtypes = {name: parameter.dtype for name, parameter in model.named_parameters(remove_duplicate=False)}
        self.core, _, _, _ = deepspeed.initialize(
            model=model,
            optimizer=None if made_by_config else optimizer,
            model_parameters=optimizer.param_groups if made_by_config else None,
            lr_scheduler=None if schedule is None else schedule.lr_scheduler_callable,
            config=config,
        )
        self._given, self._stage = optimizer, self.core.zero_optimization_stage()
        self._clipping = self.core.gradient_clipping()
        self._prepared = prepared = PreparedParameters(model, self._stage)
        if self._stage > 0:
            self._whole_optimizer = WholeOptimizer(self.core, groups, self)
            show_whole_weights(self.core, dtypes, self)
            self.remember = self._whole_optimizer.remember
            model.register_forward_hook(refuse_second_graph)
            hooked: Any = model  # torch has given the call no types
            hooked.register_load_state_dict_post_hook(lambda *_: prepared.note())
        container: nn.Module = self.core
        return container

    def optimizer(
        self, optimizer: Optimizer, models: Sequence[nn.Module], make: Callable[..., AcceleratedOptimizer]
    ) -> AcceleratedOptimizer:
        """Return the optimizer that DeepSpeed steps, with its state by the parameters of the model.

        Args:
            optimizer: Optimizer of the script.
            models: Prepared models.
            make: Constructor of the prepared optimizer.

        Raises:
            ValueError: The optimizer was not prepared together with its model.
        """
        if self.core is None or optimizer is not self._given:
            raise ValueError(
                f"this {type(optimizer).__name__} was not prepared with its model: DeepSpeed needs both in one call,"
                " model, optimizer = accelerator.prepare(model, optimizer)"
            )
        inner: Optimizer = self.core.basic_optimizer
        ready = make(inner, device_placement=False, scaler=self, unproven=False)
        ready.state_of = self._whole_optimizer or inner
        return ready

    def loss_scaler(self, make: Callable[..., LossScaler], transport: Transport) -> LossScaler | None:
        """Return None, as DeepSpeed scales losses.

        Collective:
            No rank waits for others.
        """
        return None

    def scheduler(self, scheduler: Any) -> Any:
        """Return the engine's schedule in the place of a DummyScheduler, and any other as it is.

        Raises:
            ValueError: There is no schedule to stand for, or a second one.
        """
        schedule = None if self.core is None else self.core.lr_scheduler
        if isinstance(scheduler, DummyScheduler):
            if schedule is None:
                raise ValueError(
                    'DummyScheduler stands for a schedule of DeepSpeed, and there is none: add the section "scheduler"'
                    " to its config, or give lr_scheduler_callable; prepare it together with the model"
                )
            return EngineSchedule(schedule, self.core.basic_optimizer)
        if schedule is not None:
            raise ValueError(
                f'DeepSpeed\'s config has the section "scheduler", and a {type(scheduler).__name__} is prepared: two'
                " schedules would change one rate; take the section out, or prepare a DummyScheduler"
            )
        return scheduler

    def adopt(self, models: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> None:
        """Do nothing, as parameters that came later are refused.

        Collective:
            No rank waits for others.
        """

    def backward(
        self,
        loss: torch.Tensor,
        models: Sequence[nn.Module],
        optimizers: Sequence[AcceleratedOptimizer],
        *,
        due: bool,
        **kwargs: Any,
    ) -> None:
        """Add the gradients of a loss by DeepSpeed's backward.

        Args:
            loss: The loss.
            models: Prepared models.
            optimizers: Prepared optimizers.
            due: Whether the window ends here, so that ranks share gradients.
            kwargs: `retain_graph`, for ZeRO 0 to 2.

        Raises:
            ValueError: It is a second loss at the end of a window, or DeepSpeed does not take an argument.

        Collective:
            Every rank must call.
        """
        core = self._started("backward")
        if self._prepared is not None:
            self._prepared.check()
        if self._stage == 3 and kwargs.get("retain_graph"):
            raise ValueError(
                "backward(retain_graph=True) with stage 3 of DeepSpeed, which frees weights after a backward; add the"
                " losses and call backward once"
            )
        unknown = [name for name in kwargs if name != "retain_graph"]
        if unknown:
            raise ValueError(f"backward: DeepSpeed's backward does not take {', '.join(unknown)}")
        if self._shared:
            raise ValueError(
                "backward: a second loss at the end of a window, of which DeepSpeed has reduced the gradients already;"
                " add the losses and call backward once"
            )
        core.set_gradient_accumulation_boundary(due)
        # what gathered before waits for its factor until the step: DeepSpeed keeps gradients in buffers of its own
        loss = loss if self._factor == 1.0 else loss / self._factor
        self._gathered = True
        core.backward(loss, scale_wrt_gas=False, **kwargs)
        self._shared = due

    def rescale(self, factor: torch.Tensor | float) -> None:
        """Multiply the gradients of the window, those that come later included, when the step is made."""
        number = float(factor)
        if number == 0.0:
            self._drop()
        elif self._gathered:
            self._factor *= number

    def register(self, optimizer: Optimizer) -> None:
        """Do nothing, as the engine has its optimizer."""

    def step(self, optimizer: Optimizer, closure: Any = None) -> bool:
        """Step by DeepSpeed.

        Args:
            optimizer: The prepared optimizer.
            closure: None.

        Returns:
            False if gradients overflowed.

        Raises:
            ValueError: A closure is given.
            RuntimeError: No loss at the end of the window went through `backward`.

        Collective:
            Every rank must call.
        """
        core = self._started("optimizer.step")
        if closure is not None:
            raise ValueError("optimizer.step(closure): DeepSpeed's engine takes no closure; call backward before it")
        if not self._shared:
            raise RuntimeError(
                "optimizer.step() is due, and no loss of this micro-batch went through accelerator.backward(loss);"
                " DeepSpeed shares gradients there"
            )
        inner = core.optimizer
        parts = parts_of(inner) if self._whole_optimizer is not None and not self._proven else []
        versions = [part._version for part in parts]
        if self._factor != 1.0:
            if self._stage == 0:
                multiply(core.module, self._factor)
            else:  # gradients are divided by the scale
                inner.override_loss_scale(inner.loss_scale / self._factor)
        try:
            core.step()
        finally:
            self._gathered = self._shared = False
            self._factor = 1.0
            if self._stage > 0:
                inner.custom_loss_scaler, inner.clip_grad = False, self._clipping
            if self._stage == 3:
                # a parameter that the next window does not use would step with the gradient of this one
                inner.grad_partitions_flat_buffer.zero_()
        if self._prepared is not None:
            self._prepared.note()
        applied = bool(core.was_step_applied())
        if parts and applied:
            self._proven = True
            if versions == [part._version for part in parts]:
                raise RuntimeError(
                    f"the first step of this {type(core.basic_optimizer).__name__} has changed no parameter: DeepSpeed"
                    " has put parts of them into its param_groups, and it steps with a list of its own; let it step"
                    " with what is in self.param_groups"
                )
        return applied

    def discard(self, optimizer: Optimizer) -> bool:
        """Drop gradients that had no step. DeepSpeed itself has cleared those that had.

        Returns:
            True.
        """
        if self._gathered:
            self._drop()
        return True

    def forget(self) -> None:
        """Do nothing: the engine and its model belong together, and another Accelerator has another.

        Collective:
            No rank waits for others.
        """

    def settle_gradients(self) -> None:
        """Do nothing, as gradients are complete.

        Collective:
            No rank waits for others.
        """

    def total_norm(self, gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
        """Return the norm of gradients in parameters, which is not a number if DeepSpeed has them.

        Args:
            gradients: The gradients.
            kind: Kind of norm: 2.0, or another p.

        Collective:
            No rank waits for others.
        """
        return norm_of(gradients, kind)

    def clip_norm(self, parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
        """Return the norm of all gradients, which the step will clip.

        Args:
            parameters: All trainable parameters.
            max_norm: Norm to clip to.
            kind: 2.0.

        Raises:
            ValueError: It is a part of the parameters, another norm than 2, or another maximum than the config has.

        Collective:
            Every rank must call.
        """
        core = self._started("clip_grad_norm_")
        missing = {id(parameter) for parameter in core.module.parameters() if parameter.requires_grad}
        missing -= set(map(id, parameters))
        problems = [
            line
            for wrong, line in (
                (bool(missing), f"{len(missing)} trainable parameters are left out, and DeepSpeed clips all or none"),
                (kind != 2.0, f"norm_type={kind}: DeepSpeed has the norm 2 only"),
                (
                    self._clipping not in (0.0, max_norm),
                    f"max_norm={max_norm} contradicts gradient_clipping={self._clipping} of DeepSpeed's config; write"
                    ' "auto" there',
                ),
                (not self._shared, "there are no gradients; call it after backward() and before the step"),
            )
            if wrong
        ]
        if problems:
            raise ValueError("clip_grad_norm_: " + "\n  ".join(problems))
        if self._stage == 0:
            multiply(core.module, self._factor)
            self._factor = 1.0
            return clip_grad_norm_(core.module.parameters(), max_norm)
        core.optimizer.clip_grad = max_norm
        # its norm is -1 for gradients that are not finite
        norm = scaled_norm(core.optimizer, self._stage) * (self._factor / core.optimizer.loss_scale)
        return torch.where(norm < 0, torch.full_like(norm, math.inf), norm)

    def _known(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> Known:
        ranks, micro = run.topology.world_size, self._met.batch_size(smallest=self.plugin.is_train_batch_min)
        if micro is not None and self._split_batches:
            micro = max(micro // ranks, 1)
        return Known(
            world_size=ranks,
            accumulation_steps=self._accumulation_steps,
            precision=next((name for name, dtype in HALF.items() if dtype == policy.compute), None),
            micro_batch=micro,
            hidden_size=hidden_size(model),
            optimizer=self._met.optimizer_values,
            scheduler=self._met.schedule_values,
        )

    def _started(self, call: str) -> Any:
        if self.core is None:
            raise RuntimeError(
                f"{call}: no model was prepared; pass the model and its optimizer to accelerator.prepare"
            )
        return self.core

    def _drop(self) -> None:
        self._gathered = self._shared = False
        self._factor = 1.0
        if self._stage == 0:
            self.core.zero_grad()
            return
        inner = self.core.optimizer
        inner.zero_grad()
        inner.averaged_gradients.clear()
        if self._stage < 3:
            # as DeepSpeed does after an overflow, and at the beginning of a step
            inner.all_grad_tensors.clear()
            inner.micro_step_id = -1
