"""Find the known name that a misspelt name may mean."""

from collections.abc import Iterable


def suggest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name most like `name`, if any is alike enough.

    Args:
        name: The misspelt name.
        known: Known names.
        likeness: Least likeness, from 0 to 1, which is equal.
    """
    # imported for those alone who have misspelt something: it takes 2 ms
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question that follows an error, or "" if nothing is like `name`."""
    near = suggest(name, known)
    return f"; did you mean {near!r}?" if near is not None else ""
