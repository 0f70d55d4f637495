"""Builds models without memory for their weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from accel_comm import Transport
from torch import nn
from torch.nn.modules import module
from torch.nn.parameter import is_lazy


@contextmanager
def init_empty_weights(include_buffers: bool = False) -> Iterator[None]:
    """In this block modules get their parameters on the meta device, which has shapes and dtypes and no numbers.

    Buffers get their numbers, which files of weights may lack, unless `include_buffers` puts them there too.
    `load_checkpoint_in_model` fills such a model.
    """
    with init_on_device("meta", include_buffers):
        yield


@contextmanager
def init_on_device(device: torch.device | str, include_buffers: bool | None = None) -> Iterator[None]:
    """In this block modules get their parameters on `device`, one by one; with `include_buffers` all tensors.

    On the meta device it is `init_empty_weights`.
    """
    place = torch.device(device)
    if include_buffers:
        with place:
            yield
        return

    def moved(owner: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        """The parameter on the device; None for what stays as it is, so a tied one stays one."""
        if parameter is None or parameter.device == place or is_lazy(parameter):
            return None
        copy = nn.Parameter(parameter.detach().to(place), requires_grad=parameter.requires_grad)
        copy.__dict__.update(parameter.__dict__)
        return copy

    # torch says of the hook that it returns nothing, and takes what it returns
    handle = module.register_module_parameter_registration_hook(moved)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


def make_equal(model: nn.Module, transport: Transport) -> nn.Module:
    """Give all ranks the weights and buffers that rank 0 has.

    Collective:
        Every rank must call.
    """
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.data.copy_(transport.broadcast(tensor.data, 0))
    return model


def refuse_empty(model: nn.Module) -> None:
    """Refuses a model with parameters on the meta device, if weights cannot come after `prepare`.

    Raises: ValueError with some of their names.
    """
    empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if empty:
        raise ValueError(
            f"{type(model).__name__} has {len(empty)} parameters on the meta device ({', '.join(empty[:3])}), and"
            " each process is to hold all of it: load its weights before prepare, with"
            " load_checkpoint_in_model(model, folder, {'': accelerator.device}), or shard it"
        )
