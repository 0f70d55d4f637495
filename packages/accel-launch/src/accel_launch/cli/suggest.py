"""The known name that somebody may have meant."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known name most like `name`, of those at least so alike, where 1 is equal."""
    # imported for those alone who have misspelt something: it takes 2 ms
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def nearest_flag(flag: str, known: Iterable[str]) -> str | None:
    """The known flag whose name is most like that of `flag`; dashes, which all of them have, make none alike.

    Of the spellings of one flag it is the one with dashes or underscores, as `flag` has them.
    """
    spellings: dict[str, list[str]] = {}
    for one in known:
        spellings.setdefault(_plain(one), []).append(one)
    near = nearest(_plain(flag), spellings, likeness=0.72)
    if near is None:
        return None
    dashed = "-" in flag.lstrip("-")
    return next((one for one in spellings[near] if ("-" in one.lstrip("-")) == dashed), spellings[near][0])


def _plain(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question that follows an error, empty where nothing is like `name`."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near is not None else ""
