"""Send the weights of the first rank to others, all at once, or each when it has been sharded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, final

import torch
import torch.distributed as dist
from accel_amp import local_part
from accel_state import Run
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

#: numbers that pass through pinned memory at once
PIECE = 1 << 23


@final
class RankZeroSource:
    """The parameters of rank 0, if others have none: its model leaves them to this object, and is as empty as theirs.

    Args:
        model: Model to fill.
        whole: Parameters that every rank holds whole. They and buffers get memory on every rank, for the values of
            rank 0.
        run: The current run.

    Raises:
        ValueError: Rank 0 has values for some of the parameters and not for others. It is raised on every rank.

    Collective:
        Every rank must call.
    """

    def __init__(self, model: nn.Module, whole: Collection[nn.Parameter], run: Run) -> None:
        parts = {name: parameter for name, parameter in model.named_parameters() if parameter not in whole}
        empty = run.transport.all_gather_objects(sum(parameter.is_meta for parameter in parts.values()))
        if 0 < empty[0] < len(parts):
            raise ValueError(
                f"cpu_ram_efficient_loading: rank 0 has {empty[0]} of {len(parts)} parameters on the meta device: it"
                " has to have numbers for all of them, or for none"
            )
        #: whether rank 0 has numbers that another rank lacks
        self.is_needed = not empty[0] and any(empty)
        self._numbers: dict[str, torch.Tensor] = {}
        if not self.is_needed:
            return
        for name, parameter in parts.items():
            if run.topology.rank == 0:
                self._numbers[name] = parameter.data
            _replace(parameter, parameter.detach().to("meta"))
        for tensor in [*whole, *model.buffers()]:
            if tensor.is_meta:
                _replace(tensor, torch.empty_like(tensor, device=run.placed_on, requires_grad=False))

    def fill(
        self, model: nn.Module, groups: Sequence[dist.ProcessGroup], device: torch.device, place: torch.device
    ) -> None:
        """Give each rank its part of each parameter. One whole parameter is sent at a time.

        Args:
            model: The sharded model.
            groups: Groups of ranks to send over.
            device: Device to send from and to.
            place: Device for the parts.

        Collective:
            Every rank must call.
        """
        module: Any = model
        module._apply(lambda tensor: torch.empty_like(tensor, device=place) if tensor.is_meta else tensor)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if not isinstance(parameter, DTensor):
                    continue
                whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                if name in self._numbers:
                    _fill(whole, self._numbers.pop(name))
                send_tensors([whole], groups, device)
                # every rank has the whole: nothing more is sent
                part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
                local_part(parameter).copy_(local_part(part))


def send_tensors(
    tensors: Iterable[torch.Tensor],
    groups: Sequence[dist.ProcessGroup],
    device: torch.device,
    *,
    stay: bool = False,
) -> None:
    """Give all ranks of the groups the values of the first. Tensors on the meta device are left out.

    Only the first rank copies values from the host, to a GPU through pinned memory.

    Args:
        tensors: Tensors to change.
        groups: The groups.
        device: Device to send from and to.
        stay: Leave the values on that device, where the tensors are from then on, but for tensors that are not
            contiguous: their layout stays. Tensors that are sharded already are left out.

    Collective:
        Every rank must call with like tensors in like order.
    """
    # only numbers that others get need to go to the device before
    sends = all(dist.get_rank(group) == 0 for group in groups)
    with torch.no_grad():
        for tensor in tensors:
            held = local_part(tensor)
            if held.is_meta or not groups or (stay and isinstance(tensor, DTensor)):
                continue
            near = held.device == device
            there = held.contiguous() if near else torch.empty(held.shape, dtype=held.dtype, device=device)
            if sends and not near:
                _fill(there, held)
            for group in groups:
                dist.broadcast(there, group=group, group_src=0)
            if stay and held.is_contiguous():
                tensor.data = there
            elif there is not held:
                held.copy_(there)


def _fill(there: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy values from the host to a device, to a GPU through pinned memory."""
    if not there.is_cuda:
        there.copy_(tensor)
        return
    pieces = (torch.split(one.reshape(-1), PIECE) for one in (tensor, there))
    for numbers, place in zip(*pieces, strict=True):
        # torch gives this memory to a later piece as soon as the GPU has read it
        pinned = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
        place.copy_(pinned.copy_(numbers), non_blocking=True)


def _replace(tensor: torch.Tensor, numbers: torch.Tensor) -> None:
    """Give a tensor other memory, on another device, while it stays the object that optimizers and ties hold."""
    if isinstance(tensor, nn.Parameter):
        numbers = nn.Parameter(numbers, requires_grad=tensor.requires_grad)
    torch.utils.swap_tensors(tensor, numbers)  # type: ignore[no-untyped-call] # of torch
