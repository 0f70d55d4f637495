"""Make models without memory for their weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain

import torch
from accel_comm import Transport
from torch import nn
from torch.nn.modules import module
from torch.nn.parameter import is_lazy


def init_empty_weights(include_buffers: bool = False) -> AbstractContextManager[None]:
    """Make models whose parameters are on the meta device, where they have shapes and no values.

    It is a context for the code that makes the model. `load_checkpoint_in_model` fills such a model.

    Args:
        include_buffers: Whether buffers go there too. By default they get their values, which files may lack.
    """
    return init_on_device("meta", include_buffers)


@contextmanager
def init_on_device(device: torch.device | str, include_buffers: bool | None = None) -> Iterator[None]:
    """Make models whose parameters are on a device, where each is put when it is made.

    It is a context for the code that makes the model.

    Args:
        device: The device. With "meta" it is `init_empty_weights`.
        include_buffers: Whether all tensors that are made go there.
    """
    place = torch.device(device)
    if include_buffers:
        with place:
            yield
        return

    def moved(owner: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        """Return the parameter on the device, or None for what stays as it is, so that a tied one stays one."""
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
    """Raise if a model has parameters on the meta device, and weights cannot come after `prepare`.

    Raises:
        ValueError: There are such parameters. The message has some of their names.
    """
    empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if empty:
        raise ValueError(
            f"{type(model).__name__} has {len(empty)} parameters on the meta device ({', '.join(empty[:3])}), and"
            " each process is to hold all of it: load its weights before prepare, with"
            " load_checkpoint_in_model(model, folder, {'': accelerator.device}), or shard it"
        )
