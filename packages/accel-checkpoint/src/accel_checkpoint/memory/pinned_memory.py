"""Copy tensors of GPUs into pinned memory of the host, which a GPU fills several times faster than other memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

#: bytes of a pinned buffer that holds several tensors: torch rounds each up to a power of two
BUFFER = 1 << 28
#: each tensor begins at a multiple of it, so that any dtype may
ALIGNMENT = 16
#: largest CPU tensor, in bytes, that passes through pinned memory beside tensors of a GPU
SMALL = 1 << 10


def synchronize(tensors: Iterable[torch.Tensor]) -> None:
    """Wait until the GPUs of the tensors have done all that they were asked for, on all streams."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.synchronize(device)


def empty_pinned_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a pinned tensor for each tensor, of its shape and dtype.

    They share buffers of 256 MiB, or for a larger tensor of the next power of two, which torch would take in any case.
    """
    groups: list[list[tuple[int, torch.Tensor]]] = []
    end = most = 0
    for tensor in tensors:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        if not groups or begin + tensor.nbytes > most:
            groups.append([])
            begin, most = 0, max(BUFFER, 1 << (tensor.nbytes - 1).bit_length())
        groups[-1].append((begin, tensor))
        end = begin + tensor.nbytes
    pinned = []
    for group in groups:
        begin, last = group[-1]
        buffer = _pinned(begin + last.nbytes)
        pinned += [
            buffer[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape) for begin, tensor in group
        ]
    return pinned


def pass_through_pinned(tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Return, for each tensor, whether it passes through pinned memory: those of a GPU with contiguous values.

    Beside them small tensors of the CPU do too. AdamW counts the steps of each parameter on the CPU, and the counts
    would cut its states into as many parts as there are parameters.
    """
    most = SMALL if any(tensor.is_cuda for tensor in tensors) else -1
    return [is_plain(tensor) and (tensor.is_cuda or (tensor.is_cpu and tensor.nbytes <= most)) for tensor in tensors]


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous, and neither conjugated nor negated lazily."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def staged_pieces(tensors: Sequence[torch.Tensor], most_bytes: int) -> Iterator[torch.Tensor]:
    """Yield the bytes of tensors that `pass_through_pinned`, one after the other, at most `most_bytes` at a time.

    All pieces are in the same memory: a piece is valid until the next is asked for.
    """
    synchronize(tensors)
    buffer = _pinned(min(most_bytes, sum(tensor.nbytes for tensor in tensors)))
    filled = 0
    for tensor in tensors:
        # a single number may have any stride, and then has no view as bytes
        numbers = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        begin = 0
        while begin < tensor.nbytes:
            count = min(tensor.nbytes - begin, buffer.numel() - filled)
            buffer[filled : filled + count].copy_(numbers.narrow(0, begin, count), non_blocking=True)
            begin, filled = begin + count, filled + count
            if filled == buffer.numel():
                synchronize(tensors)
                yield buffer
                filled = 0
    if filled:
        synchronize(tensors)
        yield buffer[:filled]


def _pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
