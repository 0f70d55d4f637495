"""Run torch's DistributedDataParallel with the names of the model in it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from types import FunctionType, GeneratorType, MethodType, NoneType
from typing import Any, cast, final

import torch
import torch.distributed as dist
from accel_amp import PrecisionPolicy, autocast
from torch import nn
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.parallel import DistributedDataParallel

from accel_parallel.comm_hooks import forget_buckets
from accel_parallel.computed_tensors import computed_tensors
from accel_parallel.hooks_afterwards import look
from accel_parallel.invariants import SHOWN, refuse_renormalised
from accel_parallel.rank_zero_source import send_tensors

#: attributes that torch asks for or sets after the container was made
_OF_TORCH = frozenset({"module", "reducer", "logger", "process_group", "buffer_hook"})
#: what torch says of parameters, by their places, that a backward has missed
_MISSED = re.compile(r"indices which did not receive grad for rank (\d+): ([\d ]+)")


@final
class ForwardingContainer(DistributedDataParallel):
    """A DistributedDataParallel with the names of the model, which exchanges gradients of what its methods compute.

    Methods compute in the precision of the policy. What a method returns decides: if a backward can begin there, the
    backward has to take place on all ranks. So a method that saves or counts may be called on one rank alone. Modules
    of the model that were asked for (`model.encoder`) are treated as methods when they are called.

    Args:
        module: The model.
        policy: Dtypes of forwards.
        device_type: Type of the device that forwards run on.
        options: Arguments of DistributedDataParallel.

    Source:
        `DistributedDataParallel._pre_forward` and `_post_forward` of torch 2.9 to 2.13.
    """

    def __init__(self, module: nn.Module, policy: PrecisionPolicy, device_type: str, **options: Any) -> None:
        super().__init__(module, **options)
        self._policy, self._autocast_on = policy, device_type
        #: whether there was a forward whose gradients will travel, and no backward of it yet
        self.expects = False
        #: whether the last forward was made under `no_sync`, so that its gradients stay in their process
        self.keeps = False
        #: what is done when torch's reducer is made anew
        self.on_renewal: Callable[[Sequence[str]], None] | None = None
        self._note_trained()
        self._forwards = True  # the last attribute: until here all names are those of torch

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _OF_TORCH or name.startswith("__") or "_forwards" not in self.__dict__:
                raise
        value = getattr(self.module, name)
        if isinstance(value, nn.Module):
            self._follow(value)
        elif isinstance(value, FunctionType | partial) or (
            isinstance(value, MethodType) and value.__self__ is self.module
        ):
            return self._forwarded(value, name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in _OF_TORCH or name in self.__dict__ or hasattr(type(self), name)
        if own or "_forwards" not in self.__dict__ or not hasattr(self.module, name):
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    @property
    def joins(self) -> bool:
        """True if ranks may have unequal numbers of batches just now."""
        return bool(cast("Any", self)._join_config.enable)

    def grown(self) -> list[tuple[int, int] | None]:
        """Return the identity and version of each gradient, which tell whether gradients have changed."""
        return list(map(look, self.exchanged.values()))

    def take_backward(self) -> Iterable[torch.Tensor]:
        """Note a backward that changed gradients, and return the parameters whose gradients did not travel with it."""
        if self.expects:
            self.__dict__["expects"] = False  # past torch's look for modules and parameters
            return ()
        return () if self.keeps else self.exchanged.values()

    def hooked(self) -> list[torch.Tensor]:
        """Return those of the exchanged parameters whose gradients have hooks."""
        return [one for one in self._sent if one._backward_hooks or one._post_accumulate_grad_hooks]

    def _note_trained(self) -> None:
        left_out = self.parameters_to_ignore
        named = [(name, held) for name, held in self.module.named_parameters() if name not in left_out]
        #: by their ids, the parameters whose gradients torch's reducer exchanges, and those that it was told to ignore
        self.exchanged = {id(held): held for _, held in named if held.requires_grad}
        self._sent = list(self.exchanged.values())
        self.ignored = {id(held): held for name, held in self.module.named_parameters() if name in left_out}
        self._looks = [(held, held.requires_grad, held.dtype) for _, held in named]
        modules = list(self.module.modules())
        holders: list[dict[str, Any]] = [part for one in modules for part in (one._parameters, one._modules)]
        #: where the module found each of its parameters and modules
        self._places = [(holder, name, held) for holder in holders for name, held in holder.items()]
        tables = [one for one in modules if isinstance(one, nn.Embedding | nn.EmbeddingBag)]
        self._tables = [(table, table.sparse) for table in tables]
        self._moved = False

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._moved = True
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call] # of torch

    def _changed(self) -> bool:
        for held, trained, dtype in self._looks:  # written out: each forward looks
            if held.requires_grad is not trained or held.dtype is not dtype:
                return True
        try:
            for holder, name, there in self._places:
                if holder[name] is not there:
                    found = holder[name]
                    # a call with other tensors (functional_call) ends before the next
                    if isinstance(found, nn.Parameter) or not isinstance(found, torch.Tensor):
                        return True
        except KeyError:  # one has been taken out
            return True
        for table, sparse in self._tables:
            if table.sparse is not sparse or table.max_norm is not None:
                refuse_renormalised(self.module, dist.get_world_size(self.process_group))
                self._moved |= table.sparse is not sparse
        return self._moved

    def _renew(self) -> None:
        """Make torch's reducer anew if parameters were frozen, unfrozen, converted or replaced. All ranks must call."""
        if not self._changed():
            return
        names = [name for name, held in self.module.named_parameters() if held.requires_grad]
        if not names:
            return
        if self.static_graph:
            raise ValueError(
                "parameters were frozen, unfrozen, converted or replaced, and static_graph=True says that nothing"
                " changes; leave it out"
            )
        if self.joins:
            raise ValueError(
                "join_uneven_inputs, and parameters were frozen, unfrozen, converted or replaced inside of it: ranks"
                " that have ended cannot follow; do so before the block"
            )
        if self.on_renewal is not None:
            self.on_renewal(names)
        known = {id(held) for held, _, _ in self._looks}
        came = [held.detach() for held in self.module.parameters() if id(held) not in known]
        send_tensors(came, [self.process_group], self.device)
        torchs: Any = self  # of which torch has given no types
        parameters, sparse = torchs._build_params_for_reducer()
        by_place = torchs._build_debug_param_to_name_mapping(parameters)
        torchs._ddp_init_helper(parameters, sparse, by_place, self.static_graph)
        self._has_rebuilt_buckets = False
        for hook, state in torchs._comm_hooks:
            forget_buckets(state)
            cast("Any", dist)._register_comm_hook(self.reducer, state, hook)
        self._note_trained()

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling() and self._changed():
            self._renew()
        try:
            return super()._pre_forward(*inputs, **kwargs)  # type: ignore[no-untyped-call] # of torch
        except RuntimeError as error:
            missed = _MISSED.search(str(error))
            if missed is None:
                raise
            raise RuntimeError(self._unused(missed[1], set(map(int, missed[2].split())))) from None

    def _unused(self, rank: str, missed: set[int]) -> str:
        named = [name for name, held in self.module.named_parameters() if id(held) in self.exchanged]
        names = [name for index, name in enumerate(named) if index in missed]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return (
            f"the last backward has left parameters without gradients on rank {rank}, so processes have not exchanged"
            f" all gradients: {', '.join(names[:SHOWN])}{more}. Use them in the loss, or freeze them"
            " (requires_grad_(False)) before prepare, or say that steps leave parameters out:"
            " Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])"
        )

    def _post_forward(self, output: Any) -> Any:
        if torch.is_grad_enabled():
            sends = self.require_backward_grad_sync
            self.__dict__.update(expects=self.expects or sends, keeps=not sends)
        return super()._post_forward(output)  # type: ignore[no-untyped-call] # of torch

    def _forwarded(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self._ungraded()
            with self._inside_ddp_forward(), autocast(self._policy, self._autocast_on):
                result = method(*args, **kwargs)
            if isinstance(result, GeneratorType):
                return self._forwarded_items(result)
            result = self.announce(result)
            self._refuse_backward_inside(before, name)
            return result

        return call

    def _forwarded_items(self, items: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._inside_ddp_forward(), autocast(self._policy, self._autocast_on):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield self.announce(item)

    def announce(self, result: Any) -> Any:
        """Let the reducer expect a backward from a result, if one can begin there, as after a forward of the container.

        Args:
            result: What a method has returned.

        Returns:
            The result.

        Raises:
            ValueError: Buffers have to be sent while ranks may have unequal numbers of batches.

        Collective:
            If a backward can begin at the result, every rank must call, on the first call after a backward.
        """
        if not torch.is_grad_enabled() or not computed_tensors(result):
            return result
        torchs: Any = self  # of which torch has given no types
        shares_buffers: bool = torchs.will_sync_module_buffers()
        if shares_buffers and self._join_config.enable:
            raise ValueError(
                f"join_uneven_inputs and a method of {type(self.module).__name__}, which has buffers: ranks that have"
                " ended cannot tell what it is that others send; call the model itself, or pass broadcast_buffers=False"
            )
        # The graph may hold buffers: they are sent when the backward has used them, and not now.
        before, self.require_forward_param_sync = self.require_forward_param_sync, False
        try:
            torchs._pre_forward(None)
        finally:
            self.require_forward_param_sync = before
        result = torchs._post_forward(result)
        if shares_buffers and self.require_backward_grad_sync:
            self._send_buffers_after_backward(computed_tensors(result))
        return result

    def _send_buffers_after_backward(self, tensors: list[torch.Tensor]) -> None:
        def begin(_: torch.Tensor) -> None:
            handle.remove()
            Variable._execution_engine.queue_callback(self._sync_buffers)

        handle = register_multi_grad_hook(tensors, begin, mode="any")

    def _follow(self, handed_out: nn.Module) -> None:
        for module in handed_out.modules():
            hooks = module._forward_hooks.values()
            if not any(isinstance(hook, _Announcement) and hook.container() is self for hook in hooks):
                module.register_forward_hook(_Announcement(weakref.ref(self)))

    def _ungraded(self) -> list[nn.Parameter]:
        if not (torch.is_grad_enabled() and self.require_backward_grad_sync):
            return []
        return [parameter for parameter in self.module.parameters() if parameter.grad is None]

    def _refuse_backward_inside(self, ungraded: list[nn.Parameter], name: str) -> None:
        if any(parameter.grad is not None for parameter in ungraded):
            raise RuntimeError(
                f"{type(self.module).__name__}.{name} called backward itself: its gradients stay on rank"
                f" {self._distributed_rank}, as the container learns of a backward by what a method returns; return the"
                " loss and call accelerator.backward(loss), or, to exchange gradients yourself, call the method of"
                " accelerator.unwrap_model(model)"
            )


class _Announcement:
    """A forward hook of a module that a container has handed out. A copy of the module has a hook without effect."""

    def __init__(self, container: Callable[[], ForwardingContainer | None]) -> None:
        self.container = container

    def __call__(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
        container, torchs = self.container(), cast("Any", DistributedDataParallel)
        # inside a forward or method of a container its result is what counts
        if container is None or torchs._get_active_ddp_module() is not None:
            return result
        return container.announce(result)

    def __reduce__(self) -> tuple[type[_Announcement], tuple[type[None]]]:
        return (_Announcement, (NoneType,))  # which is called for the container, and gives None
