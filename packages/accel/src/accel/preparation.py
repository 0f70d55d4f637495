"""Make models, optimizers, loaders and schedulers ready for a run."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accel_amp import AcceleratedOptimizer, AcceleratedScheduler, unwrap_forward, wrap_forward
from accel_amp.optimizer_parameters import parameters_of
from accel_big import require_held, require_whole_model
from accel_data import ConsumptionLog, DataLoaderShard, Ending, prepare_data_loader
from accel_parallel import follow, outermost, recompute, refuse_renormalised, refuse_replaced, refuse_stale, tie_again
from accel_parallel.stages.arrival import refuse_divided
from accel_parallel.stages.containers import inside, uncompiled
from accel_state import PartialWindow
from accel_state.environ import process_environ
from accel_state.mesh import Axis
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from accel.build import Components
from accel.compilation import compile_model
from accel.configuration import DataLoaderConfiguration
from accel.settings import Settings, of_loaders

Ready = TypeVar("Ready")
NamedParameters = list[tuple[str, nn.Parameter]]

logger = logging.getLogger("accel")
#: the loader that each prepared loader was made of
_ORIGINALS: weakref.WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = weakref.WeakKeyDictionary()


class Preparer:
    """The maker of objects that are ready for a run, which remembers them.

    Args:
        components: The parts of the run that objects are made ready for.
        settings: What the script asks for.
        on_ready: A function that is told of each object that is ready.
    """

    def __init__(
        self, components: Components, settings: Settings, on_ready: Callable[[object], None] | None = None
    ) -> None:
        self.components = components
        self.settings = settings
        self._on_ready = on_ready
        self.models: list[nn.Module] = []
        self.optimizers: list[AcceleratedOptimizer] = []
        self.schedulers: list[AcceleratedScheduler] = []
        self.loaders: list[DataLoader[Any]] = []
        #: all lists of what is ready
        self.ready: tuple[list[Any], ...] = (self.models, self.optimizers, self.schedulers, self.loaders)
        self._said_how_schedulers_step = False
        # whether a move has put other parameters in the places of those of a model
        self._replaced = False

    def prepare(self, objects: Sequence[Any], placement: Sequence[bool] | None = None) -> Any:
        """Return the objects, prepared, as a tuple in the order given, and a single object by itself.

        Args:
            objects: Models, optimizers, loaders and schedulers. Anything else comes back as it is.
            placement: For each object, whether it is moved to the device; None for what the settings say.

        Raises:
            ValueError: There is no object, placements do not match the objects, or a scheduler lacks its optimizer.

        Collective:
            Every process must call with like objects in like order.
        """
        if not objects:
            raise ValueError("prepare() needs at least one object: a model, an optimizer, a DataLoader or a scheduler")
        if placement is not None and len(placement) != len(objects):
            raise ValueError(
                f"device_placement has {len(placement)} entries for {len(objects)} objects; give one for each"
            )
        places = list(placement) if placement is not None else [self.settings.device_placement] * len(objects)
        raw_optimizers = [given for given in objects if isinstance(given, Optimizer) and not self._is_ready(given)]
        ready = list(objects)
        models = [*self.models, *(given for given in objects if isinstance(given, nn.Module))]
        self.components.steps.meet([given for given in objects if not self._is_ready(given)], models)

        def make_ready(kind: Any, make: Callable[..., object]) -> None:
            for index, (given, place) in enumerate(zip(objects, places, strict=True)):
                if isinstance(given, kind):
                    ready[index] = make(given, place=place)

        make_ready(nn.Module, partial(self.model, optimizers=raw_optimizers))
        refuse_stale(raw_optimizers, models, self.components.run.placed_on)
        make_ready(Optimizer, self.optimizer)
        make_ready(DataLoader, self.loader)
        make_ready(LRScheduler | AcceleratedScheduler, lambda given, place: self.scheduler(given))
        return ready[0] if len(ready) == 1 else tuple(ready)

    def model(
        self,
        model: nn.Module,
        *,
        place: bool | None = None,
        evaluation: bool = False,
        optimizers: Sequence[Optimizer] = (),
    ) -> nn.Module:
        """Return a model on its device, in the precision of the run, in the container of the strategy.

        Args:
            model: The model.
            place: Move it to the device; None for what the settings say.
            evaluation: It is not trained: it gets no container.
            optimizers: Optimizers that follow if its parameters are replaced.

        Collective:
            Every process must call, unless the model is for evaluation.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"only a torch.nn.Module can be prepared as a model, found a {type(model).__name__}")
        if self._is_ready(model):
            return model
        if not evaluation:
            require_whole_model(model)
            if Axis.TENSOR not in self.components.strategy.axes:
                refuse_divided(model, self.components.strategy.name, self.components.run)
            refuse_renormalised(model, self.components.run.topology.world_size)
        strategy, run = self.components.strategy, self.components.run
        names = list(model.named_parameters(remove_duplicate=False))
        if (self.settings.device_placement if place is None else place) and (evaluation or not strategy.moves_models):
            self._move(model, names, optimizers)
        inner = strategy.unwrap(model)
        self.components.precision.converted(inner)
        if self.components.sequences is not None and not evaluation:
            self.components.sequences.divide(inner)
        wrap_forward(inner, self.components.policy, run.placed_on.type)
        if (options := self.settings.recomputation) is not None and not evaluation:
            recompute(inner, outermost(options.blocks(inner)))
        compile_model(inner, self.settings.compilation)
        # One that is in its container already (of another Accelerator, or the user's own) would exchange twice.
        if evaluation or inner is not model:
            ready = model
        else:
            before = list(model.named_parameters(remove_duplicate=False))
            ready = strategy.setup(model, run, self.components.policy)
            follow(strategy.unwrap(ready), before, optimizers)
        self.components.guard.watch(ready.parameters())
        return self._remember(self.models, ready)

    def _move(self, model: nn.Module, names: NamedParameters, optimizers: Sequence[Optimizer]) -> None:
        """Move a model, with ties and optimizers if that makes new parameters, but for a model on meta."""
        if any(parameter.is_meta for parameter in model.parameters()):
            return
        model.to(self.components.run.placed_on)
        tie_again(model, names)
        self._replaced |= any(model.get_parameter(name) is not before for name, before in names)
        follow(model, names, optimizers)

    def optimizer(self, optimizer: Optimizer, *, place: bool | None = None) -> AcceleratedOptimizer:
        """Return an optimizer that steps when a step is due.

        Args:
            optimizer: An optimizer of torch.
            place: Move its state to the device; None for what the settings say.

        Raises:
            ValueError: The strategy cannot step it.
        """
        if isinstance(optimizer, AcceleratedOptimizer):
            if self._is_ready(optimizer):
                return optimizer
            optimizer = optimizer.optimizer  # of another Accelerator
        require_held(parameters_of(optimizer))
        make = partial(
            AcceleratedOptimizer,
            device_placement=self.settings.device_placement if place is None else place,
            scaler=self.components.scaler,
            accumulation=self.components.accumulation,
            step_boundary=self.components.run.device.step_boundary,
            unproven=self._replaced,
        )
        ready = self.components.steps.optimizer(optimizer, self.models, make)
        ready.before_group = self._meet_group
        self.components.steps.adopt(self.models, parameters_of(optimizer))
        return self._remember(self.optimizers, ready)

    def _meet_group(self, parameters: Sequence[torch.Tensor]) -> None:
        """Raise if parameters of a later group would not train, and make others equal on all processes."""
        self.components.refuse("add_param_group")
        if self.settings.device_placement:
            refuse_replaced(parameters, self.models, self.components.run.placed_on)
        self.components.steps.adopt(self.models, parameters)

    def loader(
        self, loader: DataLoader[Any], *, place: bool | None = None, ending: Ending | str | None = None
    ) -> DataLoader[Any]:
        """Return a loader that serves this process its part.

        Args:
            loader: The loader of the whole data set.
            place: Move batches to the device; None for what the settings say.
            ending: What happens if samples do not divide evenly; None for what the settings say.

        Collective:
            Every process must call and iterate alike.
        """
        if self._is_ready(loader):
            return loader
        loader = original = _ORIGINALS.get(loader, loader)  # that of another Accelerator is prepared anew
        run, asked = self.components.run, asdict(self.settings.data)
        if (log := asked["consumption_log"]) is not None:
            asked["consumption_log"] = ConsumptionLog(Path(log).absolute(), str(len(self.loaders)))
        ready = prepare_data_loader(
            loader,
            run.placed_on,
            put_on_device=self.settings.device_placement if place is None else place,
            rng_types=self.settings.rng_types,
            transport=run.data_transport,
            hardware=run.device,
            accumulation=self.components.accumulation,
            **asked | ({} if ending is None else {"ending": ending}),
        )
        _ORIGINALS[ready] = original
        return self._remember(self.loaders, ready)

    def container(self, model: nn.Module, asked_by: str) -> nn.Module:
        """Return the prepared model for that model, what torch.compile made of it, or the model inside of it.

        Args:
            model: One of these.
            asked_by: The call that needs it, for the error.

        Raises:
            ValueError: The model was not prepared.
        """
        for prepared in self.models:  # written out: a micro-batch asks
            if prepared is model:
                return model
        inner = self.components.strategy.unwrap(uncompiled(model))
        for prepared in self.models:
            if self.components.strategy.unwrap(prepared) is inner:
                return prepared
        raise ValueError(
            f"{asked_by} needs the models that prepare returned; this {type(model).__name__} is none of the"
            f" {len(self.models)} that this Accelerator prepared"
        )

    def join_context(self, models: Iterable[nn.Module]) -> AbstractContextManager[None]:
        """Return the context in which processes may have unequal numbers of batches of prepared models.

        Raises:
            ValueError: A model was not prepared, or a window would go on after the end of the data.
        """
        containers = [self.container(model, "join_uneven_inputs") for model in models]
        accumulation, world_size = self.components.accumulation, self.components.run.topology.world_size
        if accumulation.every > 1 and accumulation.at_epoch_end is PartialWindow.CARRY and world_size > 1:
            raise ValueError(
                f"join_uneven_inputs with at_epoch_end='carry' and gradient_accumulation_steps={accumulation.every}:"
                " ranks end apart, and so with unlike parts of a window; use 'flush' or 'drop'"
            )
        # what is dropped is dropped by each rank at its own end: it has no step that others would have to take part in
        together = accumulation.every > 1 and accumulation.at_epoch_end is PartialWindow.FLUSH
        return self.components.strategy.joining(containers, accumulation if together else None)

    @contextmanager
    def ending(self, ending: Ending) -> Iterator[None]:
        """Replace the `ending` of prepared map-style loaders inside the block."""
        shares = [loader.share for loader in self.loaders if isinstance(loader, DataLoaderShard)]
        kept = [(share, share.ending) for share in shares if share is not None]
        for share, before in kept:
            # what is dropped stays dropped, and one process ends as it likes
            if share.where.of > 1 and before is not Ending.DROP:
                share.ending = ending
        try:
            yield
        finally:
            for share, before in kept:
                share.ending = before

    def scheduler(self, scheduler: LRScheduler | AcceleratedScheduler) -> AcceleratedScheduler:
        """Return a scheduler that follows the prepared optimizer that it belongs to.

        Raises:
            ValueError: That optimizer was not prepared.
        """
        if isinstance(scheduler, AcceleratedScheduler):
            if self._is_ready(scheduler):
                return scheduler
            scheduler = scheduler.scheduler  # as above
        inner = self.components.steps.scheduler(scheduler)
        stepped = getattr(inner.optimizer, "optimizer", inner.optimizer)
        followed = [prepared for prepared in self.optimizers if prepared.optimizer is stepped]
        if not followed:
            raise ValueError(
                f"{type(scheduler).__name__} belongs to an optimizer that is not prepared; pass the optimizer to"
                " prepare together with the scheduler, or before it"
            )
        run = self.components.run
        advance = 1 if self.settings.scheduler_once_per_step else run.mesh.data_size
        ready = AcceleratedScheduler(
            inner,
            followed,
            self.settings.step_scheduler_with_optimizer,
            self.settings.data.split_batches,
            num_processes=advance,
            accumulation=self.components.accumulation,
        )
        self._say_how_schedulers_step(advance)
        return self._remember(self.schedulers, ready)

    def _say_how_schedulers_step(self, advance: int) -> None:
        stays = self.settings.data.split_batches or not self.settings.step_scheduler_with_optimizer
        run = self.components.run
        if run.mesh.data_size == 1 or run.topology.rank != 0 or stays or self._said_how_schedulers_step:
            return
        self._said_how_schedulers_step = True
        rule = "advance once for each optimizer step (scheduler_once_per_step=True)"
        if advance > 1:
            rule = (
                f"advance {advance} times for each optimizer step, once for each process, as they were made for the"
                " unsharded data; for once, use Accelerator(scheduler_once_per_step=True)"
            )
        logger.warning("prepared learning-rate schedulers %s", rule)

    def configure_loaders(self, config: DataLoaderConfiguration) -> None:
        """Take another configuration for loaders that are prepared from now on."""
        self.settings = replace(self.settings, data=of_loaders(config, process_environ()))

    def unwrap(self, model: nn.Module, *, keep_autocast: bool = True, keep_compile: bool = True) -> nn.Module:
        """Return the model that was given to `prepare`.

        Args:
            model: A prepared model.
            keep_autocast: Keep the precision of its forward.
            keep_compile: Keep what torch.compile made of it.
        """
        inner = inside(model, self.components.strategy.unwrap, keep_compile=keep_compile)
        return inner if keep_autocast else unwrap_forward(inner)

    def forget(self) -> None:
        """Forget every object that was prepared."""
        for known in self.ready:
            known.clear()
        self.components.steps.forget()
        self.components.guard.release()
        if self.components.scaler is not None:
            self.components.scaler.release()

    def _remember(self, known: list[Ready], ready: Ready) -> Ready:
        known.append(ready)
        ready._is_accelerate_prepared = True  # type: ignore[attr-defined] # as libraries for Accelerate ask
        if self._on_ready is not None:
            self._on_ready(ready)
        return ready

    def _is_ready(self, candidate: object) -> bool:
        return any(candidate is prepared for known in self.ready for prepared in known)
