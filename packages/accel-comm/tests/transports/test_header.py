"""Headers joined on their way up any tree of ranks say what all ranks say, and whether they say the same."""

import os

import pytest
from accel_comm import CollectiveMismatch
from accel_comm.hang_diagnosis import COMPARED, UNLIKE
from accel_comm.transports.agreement import BLOCK, without_lengths
from accel_comm.transports.header import (
    BARE,
    CALLS,
    DATA,
    WORDS,
    Header,
    calls,
    header,
    joined,
    require_one_call,
    unpacked,
)
from hypothesis import given
from hypothesis import strategies as st

SAID = st.tuples(st.sampled_from(["gather", "reduce (sum)"]), st.sampled_from(["a.py:1", "b/a.py:1", "c.py:2"]))
RANKS = st.lists(st.tuples(SAID, st.sampled_from([b"", b"x" * 16]), st.integers(0, 1 << 40)), min_size=1, max_size=9)


def joined_some_at_a_time(messages: list[bytes], cuts: list[int]) -> Header:
    """All of them joined as they travel, some neighbours at a time."""
    while len(messages) > 1:
        at = (cuts.pop() if cuts else 0) % (len(messages) - 1)
        messages[at : at + 2] = [joined(list(map(unpacked, messages[at : at + 2])), b"".join).packed()]
    return unpacked(messages[0].ljust(BLOCK, b"\0"))


@given(RANKS, st.lists(st.integers(0, 8)))
def test_the_order_of_joining_does_not_matter(ranks: list[tuple[tuple[str, str], bytes, int]], cuts: list[int]) -> None:
    """T4: every rank hears the same, wherever in the tree the ranks stand that differ."""
    headers = [
        header(what, site, about, (rank).to_bytes(2, "little") + b"p" * rank, longest)
        for rank, ((what, site), about, longest) in enumerate(ranks)
    ]
    said = joined_some_at_a_time([one.packed() for one in headers], cuts)
    whats, abouts = {what for (what, _), _, _ in ranks}, {about for _, about, _ in ranks}
    names = sorted(site.rpartition("/")[2] for (_, site), _, _ in ranks)
    assert said.differs == CALLS * (len(whats) > 1) + DATA * (len(abouts) > 1)
    lines = [line.rstrip(b"\0").decode().rpartition("/")[2] for line in (said.first_line, said.last_line)]
    assert lines == [names[0], names[-1]]
    assert said.has_one_line == (len(set(names)) == 1)
    assert said.longest == max(longest for _, _, longest in ranks)
    if said.differs:
        assert said.part == b""
    else:
        assert without_lengths(said.part) == [b"p" * rank for rank in range(len(ranks))]


def test_parts_of_ranks_that_differ_are_never_joined() -> None:
    headers = [header("reduce", "a.py:1", about, b"part") for about in (b"a", b"b")]
    joined(headers, lambda _: pytest.fail("they may have unlike lengths"))


@given(st.text(), st.text(), st.binary(max_size=300), st.integers(0, 1 << 60))
def test_any_header_comes_back_with_whatever_stands_behind_it(what: str, site: str, part: bytes, longest: int) -> None:
    """The length is one that is known, of any call and any line; a payload may be longer than four gibibytes."""
    said = header(what, site, bytes(16), part, longest)
    assert len(said.packed()) == BARE + len(part)
    back = unpacked(said.packed() + b"more")
    assert (back.part, back.longest, back.differs) == (part, longest, 0)


def test_a_line_keeps_its_end_and_a_call_its_beginning() -> None:
    """T4: `file:line`, of a path of any length."""
    site = f"/home/{'folder/' * 50}train.py:1234"
    rows = calls([header("gather" * 50, site), header("reduce" * 50, site)], [0, 1]).splitlines()[1:]
    for rank, (row, what) in enumerate(zip(rows, ("gather", "reduce"), strict=True)):
        assert row.startswith(f"  rank {rank}: {what * 10} at ")
        assert row.endswith("folder/train.py:1234")


@given(st.lists(st.sampled_from(["gather", "reduce (sum)", "wait_for_everyone"]), min_size=2, max_size=9))
def test_a_disagreement_names_what_every_rank_calls_and_where(asked: list[str]) -> None:
    """T4, fault test 31."""
    ranks = range(5, 5 + len(asked))
    sites = [f"train.py:{rank + 10}" for rank in ranks]
    received = [unpacked(header(what, site).packed()) for what, site in zip(asked, sites, strict=True)]
    if len(set(asked)) == 1:
        require_one_call(received, ranks)
        return
    with pytest.raises(CollectiveMismatch) as failure:
        require_one_call(received, ranks)
    rows = [f"  rank {rank}: {what} at {site}" for rank, what, site in zip(ranks, asked, sites, strict=True)]
    assert str(failure.value).splitlines()[1:-1] == rows


@pytest.mark.parametrize("what", [COMPARED, "reduce (sum)"])
def test_a_rank_that_compares_parameters_is_told_what_to_do(what: str) -> None:
    """The other has used the same as before, and goes on to its next call."""
    received = [unpacked(header(one, "train.py:4").packed()) for one in (what, "gather")]
    with pytest.raises(CollectiveMismatch) as failure:
        require_one_call(received, [0, 1])
    assert str(failure.value).endswith("call the same on every rank" + UNLIKE) == (what == COMPARED)


def test_a_letter_that_is_cut_in_two_can_still_be_told() -> None:
    site = "é" * WORDS + ".py:1"
    assert calls([header("gather", site)], [0]).endswith("é.py:1")


def test_a_path_that_is_no_text_can_be_sent() -> None:
    site = os.fsdecode(b"/home/\xe9t\xe9/train.py:7")
    assert unpacked(header("gather", site, part=b"paid").packed()).part == b"paid"
