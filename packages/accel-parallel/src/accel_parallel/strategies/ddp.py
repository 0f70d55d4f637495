"""Copy the whole model to every process, and average gradients (DistributedDataParallel)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, Self, final

import torch
import torch.distributed as dist
from accel_amp import Precision, PrecisionPolicy
from accel_comm import Transport
from accel_state import AccumulationState, Run
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel

from accel_parallel.comm_hooks import CommHook, CommHookSettings
from accel_parallel.ddp_options import DistributedDataParallelKwargs
from accel_parallel.empty_weights import make_equal, refuse_empty
from accel_parallel.forwarding_container import ForwardingContainer
from accel_parallel.invariants import SHOWN, unlike_lists
from accel_parallel.missed_gradients import MissedGradients
from accel_parallel.strategy import Strategy
from accel_parallel.strategy_options import Asked
from accel_parallel.torch_steps import TorchSteps
from accel_parallel.uneven import WindowEnd


@final
class Ddp(Strategy):
    """The strategy that puts models into torch's DistributedDataParallel, which then has the models' names too.

    Args:
        comm_hook: Hook that compresses gradients.
        comm_wrapper: Hook that it is wrapped in.
        comm_state_option: Arguments of torch's PowerSGDState.
        options: Arguments of DistributedDataParallel.

    Raises:
        ValueError: A hook is not known.
    """

    name: ClassVar[str] = "ddp"
    shares_sequences: ClassVar[bool] = True
    steps: TorchSteps
    options_type: ClassVar[type | None] = DistributedDataParallelKwargs

    def __init__(
        self,
        *,
        comm_hook: CommHook | str = CommHook.NO,
        comm_wrapper: CommHook | str = CommHook.NO,
        comm_state_option: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.comm_hooks = CommHookSettings.parse(comm_hook, comm_wrapper, comm_state_option or {})
        self.options = options
        self.steps = TorchSteps()
        self._in_graph = False

    @classmethod
    def made(cls, options: DistributedDataParallelKwargs | None, asked: Asked) -> Self:
        """Return the strategy with the options that are not the default."""
        return cls(**(options.to_kwargs() if options is not None else {}))

    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """Return a reason on XLA for options that only the container has."""
        if run.placed_on.type == "xla" and (self.options or self.comm_hooks != CommHookSettings.parse("no", "no", {})):
            return ["on XLA the graph of a step averages gradients: leave out options and hooks of its container"]
        return []

    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """Put a model into DistributedDataParallel, its parameters and buffers those of rank 0.

        Args:
            model: The model.
            run: The current run.
            policy: Dtypes of forwards.

        Returns:
            The container. A model without trainable parameters has no gradients to exchange: it is returned as it is,
            but made equal too.

        Raises:
            ValueError: The model is on the meta device.

        Collective:
            Every rank must call.
        """
        if run.placed_on.type != "meta":
            refuse_empty(model)
        group, trains = dist.group.WORLD, any(parameter.requires_grad for parameter in model.parameters())
        if trains and self.steps.missed is None and group is not None:
            self.steps.missed = MissedGradients(run, [group], [group], _late)
        # on XLA no container exchanges gradients: all of them are averaged at the end of the backward, in its graph
        self._in_graph = run.placed_on.type == "xla"
        if self._in_graph or not trains:
            return make_equal(model, run.transport)
        on_the_device = {parameter.device for parameter in model.parameters()} == {run.placed_on}
        # torch takes them for a model on one accelerator only, and then moves inputs there too
        device_ids = [run.placed_on] if on_the_device and run.placed_on.type != "cpu" else None
        container = ForwardingContainer(model, policy, run.placed_on.type, device_ids=device_ids, **self.options)
        self.comm_hooks.register(container)
        container.on_renewal = partial(_agree_on_trained, run.transport)
        return container

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the model inside DistributedDataParallel."""
        return model.module if isinstance(model, DistributedDataParallel) else model

    @contextmanager
    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> Iterator[None]:
        """Run torch's Join over the containers and the ends of windows.

        Collective:
            Every rank must enter and leave it.
        """
        containers = [model for model in models if isinstance(model, DistributedDataParallel)]
        if not containers:
            yield
            return
        joinables: list[Joinable] = [*containers]
        if windows is not None:
            end = WindowEnd(containers[0].join_device, containers[0].join_process_group)
            joinables.insert(0, end)
            windows.ends_anywhere = end.anywhere
        try:
            with Join(joinables):
                yield
        finally:
            if windows is not None:
                windows.ends_anywhere = None

    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Return the `no_sync` of the container, or what keeps gradients here on XLA, unless they are exchanged."""
        if not enabled and isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return self.steps.keeping() if self._in_graph and not enabled else nullcontext()

    @contextmanager
    def synchronising_backward(self, model: nn.Module) -> Iterator[None]:
        """Let the container's reducer expect gradients that its forward, under `no_sync`, has not announced.

        Raises:
            ValueError: With find_unused_parameters, where the forward finds out which parameters are used.
        """
        if not isinstance(model, DistributedDataParallel):
            yield
            return
        if model.find_unused_parameters:
            raise ValueError(
                "trigger_sync_in_backward with find_unused_parameters=True: which parameters were used is found out in"
                " a forward whose gradients travel; leave the option out, or run that forward outside of no_sync"
            )
        before = model.require_backward_grad_sync, model.require_forward_param_sync
        if isinstance(model, ForwardingContainer):
            model.expects, model.keeps = True, False
        model.require_backward_grad_sync = model.require_forward_param_sync = True
        model.reducer.prepare_for_backward([])
        try:
            yield
        finally:
            model.require_backward_grad_sync, model.require_forward_param_sync = before


def _late(models: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return those that no container exchanges, whether it leaves them out or they are in none."""
    known: dict[int, Any] = {}
    for model in models:
        if type(model) is ForwardingContainer:
            known = {**known, **model.exchanged} if known else model.exchanged
            known = {**known, **model.ignored} if model.ignored else known
        elif isinstance(model, DistributedDataParallel):  # the user's own
            known = known | {id(parameter): parameter for parameter in model.parameters()}
    if all(map(known.__contains__, map(id, parameters))):  # as in most steps, each of which asks
        return []
    return [one for one in parameters if id(one) not in known and one.requires_grad]


def _agree_on_trained(transport: Transport, names: Sequence[str]) -> None:
    what = "parameters that are trained from now on"
    ranks = unlike_lists(transport, what, list(names))
    if not ranks:
        return
    shared = set(ranks[0]).intersection(*ranks)
    found = "".join(
        f"\n  rank {rank}: {len(mine)}, of them not on all ranks: "
        + (", ".join([name for name in mine if name not in shared][:SHOWN]) or "none")
        for rank, mine in enumerate(ranks)
    )
    raise ValueError(f"{what}: freeze and unfreeze the same ones on every rank; found{found}")


STRATEGY = Ddp
