"""Which sources can be put at a place."""

from __future__ import annotations

from collections import deque


def is_stateful(source: object) -> bool:
    """Whether a source, or a sampler, can say where it stands and be put there again."""
    told = all(callable(getattr(source, name, None)) for name in ("state_dict", "load_state_dict"))
    return told and not forgets_its_buffer(source)


def forgets_its_buffer(source: object) -> bool:
    """Whether it is a stream of Hugging Face datasets that shuffles in a buffer, which its state leaves out."""
    waiting = deque([getattr(source, "_ex_iterable", None)])
    while waiting:
        inner = waiting.popleft()
        if type(inner).__name__ == "BufferShuffledExamplesIterable":
            return True
        waiting.extend([one for one in (getattr(inner, "ex_iterable", None),) if one is not None])
        waiting.extend(getattr(inner, "ex_iterables", None) or [])
    return False
