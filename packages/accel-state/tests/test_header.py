"""The first message of an exchange: whatever is asked for, by whomever, comes back; a disagreement names all ranks."""

import os

import pytest
from accel_state import CollectiveMismatch
from accel_state.transports import header
from accel_state.transports.header import WORDS
from hypothesis import example, given
from hypothesis import strategies as st

LENGTHS = st.integers(256, 4096)
HEAD = header._HEAD.size


def said(what: str, site: str, payload: bytes, length: int) -> bytes:
    """The header of a rank as it travels: what is shorter is filled up with zeros."""
    mine = header.write(what, site, payload, length)
    assert len(mine) <= length
    return mine.ljust(length, b"\0")


@given(st.text(), st.text())
def test_a_header_without_a_payload_has_a_length_that_is_known(what: str, site: str) -> None:
    assert len(header.write(what, site, b"", header.BARE)) <= header.BARE <= 256


@given(what=st.text(), sites=st.lists(st.text(), min_size=1, max_size=9), length=LENGTHS, data=st.data())
def test_what_each_rank_says_is_read_by_all(what: str, sites: list[str], length: int, data: st.DataObject) -> None:
    """T4: any operation, line and payload, in a header of any length."""
    near = st.integers(length - HEAD - 2 * WORDS - 4, length + 4)
    payloads = [data.draw(st.binary(max_size=9)).ljust(data.draw(st.just(0) | near), b"x") for _ in sites]
    headers = [said(what, site, payload, length) for site, payload in zip(sites, payloads, strict=True)]
    found = header.read(headers, range(len(sites)))
    assert found.lengths == [len(one) for one in payloads]
    heads = [HEAD + len(what.encode()[:WORDS]) + len(site.encode()[-WORDS:]) for site in sites]
    fit = all(head + len(payload) <= length for head, payload in zip(heads, payloads, strict=True))
    assert found.payloads == (payloads if fit else None)


@given(LENGTHS, st.integers(0, 200), st.integers(0, 200))
@example(length=4096, words=60, line=60)
def test_a_payload_is_there_whole_or_not_at_all(length: int, words: int, line: int) -> None:
    """The longest that fits, and one byte more."""
    room = length - HEAD - min(words, WORDS) - min(line, WORDS)
    for count, there in ((room, True), (room + 1, False)):
        payload = os.urandom(count)
        found = header.read([said("w" * words, "s" * line, payload, length)], [0])
        assert (found.payloads, found.lengths) == ([payload] if there else None, [count])


def test_one_payload_that_is_too_long_is_one_for_all() -> None:
    """Every rank must know that another message follows, those with a short one too."""
    for lengths in ([1, 300, 1], [300, 1, 1], [1, 1, 300]):
        headers = [said("gather", "train.py:1", bytes(count), 256) for count in lengths]
        found = header.read(headers, range(3))
        assert (found.lengths, found.payloads) == (lengths, None)


def test_the_same_from_different_lines_is_told() -> None:
    """A call inside an `if` may have met another one that looks the same."""
    first = said("gather", "a/train.py:1", b"", 256)
    found = header.read([first, said("gather", "b/train.py:2", b"", 256)], [0, 1])
    assert found.apart == "\n  rank 0: gather at a/train.py:1\n  rank 1: gather at b/train.py:2"
    same = header.read([first, said("gather", "b/train.py:1", b"", 256)], [0, 1])
    assert same.apart is None


def test_a_payload_may_be_longer_than_four_gibibytes() -> None:
    assert header.read([header._HEAD.pack(1 << 33, 0, 0).ljust(256, b"\0")], [0]).lengths == [1 << 33]


def test_an_empty_payload_is_a_payload() -> None:
    found = header.read([said("wait_for_everyone", "train.py:1", b"", 256)], [0])
    assert (found.payloads, found.lengths) == ([b""], [0])


def test_a_line_keeps_its_end_and_an_operation_its_beginning() -> None:
    """T4: `file:line`, of a path of any length."""
    site = f"/home/{'folder/' * 50}train.py:1234"
    headers = [said("gather" * 50, site, b"", 4096), said("reduce" * 50, site, b"", 4096)]
    with pytest.raises(CollectiveMismatch) as failure:
        header.read(headers, [0, 1])
    for rank, what in enumerate(("gather", "reduce")):
        row = str(failure.value).splitlines()[1 + rank]
        assert row.startswith(f"  rank {rank}: {what * 10} at ")
        assert row.endswith("folder/train.py:1234")


@given(st.lists(st.sampled_from(["gather", "reduce (sum)", "wait_for_everyone"]), min_size=2, max_size=9), LENGTHS)
def test_a_disagreement_names_what_every_rank_asks_for_and_where(asked: list[str], length: int) -> None:
    """T4, fault test 31."""
    ranks = range(5, 5 + len(asked))
    sites = [f"train.py:{rank + 10}" for rank in ranks]
    received = [said(what, site, b"paid", length) for what, site in zip(asked, sites, strict=True)]
    if len(set(asked)) == 1:
        assert header.read(received, ranks).payloads == [b"paid"] * len(asked)
        return
    with pytest.raises(CollectiveMismatch) as failure:
        header.read(received, ranks)
    rows = [f"  rank {rank}: {what} at {site}" for rank, what, site in zip(ranks, asked, sites, strict=True)]
    assert str(failure.value).splitlines()[1:-1] == rows


def test_a_letter_that_is_cut_in_two_can_still_be_told() -> None:
    site = "é" * WORDS + ".py:1"
    with pytest.raises(CollectiveMismatch, match=r"rank 1: reduce at .*é\.py:1\n"):
        header.read([said("gather", site, b"", 256), said("reduce", site, b"", 256)], [0, 1])


def test_a_path_that_is_no_text_can_be_sent() -> None:
    site = os.fsdecode(b"/home/\xe9t\xe9/train.py:7")
    assert header.read([said("gather", site, b"paid", 256)], [0]).payloads == [b"paid"]
