"""Blocks joined on their way up any tree of ranks say what all ranks say, and whether they say the same."""

import pytest
from accel_state.transports import agreement_block
from accel_state.transports.agreement_block import DIFFERENT, ROOM, SIZE, UNLIKE
from hypothesis import given
from hypothesis import strategies as st

CALLS = st.tuples(st.sampled_from(["gather", "reduce (sum)"]), st.sampled_from(["a.py:1", "b/a.py:1", "c.py:2"]))
RANKS = st.lists(st.tuples(CALLS, st.sampled_from([b"", b"x" * 16]), st.integers(0, 1 << 40)), min_size=1, max_size=9)


def joined(blocks: list[bytes], cuts: list[int]) -> bytes:
    """All of them joined, some neighbours at a time."""
    while len(blocks) > 1:
        at = (cuts.pop() if cuts else 0) % (len(blocks) - 1)
        blocks[at : at + 2] = [agreement_block.joined(blocks[at : at + 2], b"".join)]
    return blocks[0]


@given(RANKS, st.lists(st.integers(0, 8)))
def test_the_order_of_joining_does_not_matter(ranks: list[tuple[tuple[str, str], bytes, int]], cuts: list[int]) -> None:
    """T4: every rank hears the same verdict, wherever in the tree the ranks stand that differ."""
    parts = [agreement_block.with_length(b"p" * rank) for rank in range(len(ranks))]
    blocks = [
        agreement_block.write(what, site, about, part, longest)
        for ((what, site), about, longest), part in zip(ranks, parts, strict=True)
    ]
    said = agreement_block.read(joined(blocks, cuts).ljust(SIZE, b"\0"))
    whats, abouts = {what for (what, _), _, _ in ranks}, {about for _, about, _ in ranks}
    lines = sorted(site.rpartition("/")[2].encode() for (_, site), _, _ in ranks)
    assert said.verdict == DIFFERENT * (len(whats) > 1) + UNLIKE * (len(abouts) > 1)
    assert (said.first_line.rstrip(b"\0"), said.last_line.rstrip(b"\0")) == (lines[0], lines[-1])
    assert said.longest == max(longest for _, _, longest in ranks)
    if said.verdict:
        assert len(ranks) == 1 or said.part == b""
    else:
        assert agreement_block.without_lengths(said.part) == [b"p" * rank for rank in range(len(ranks))]


def test_parts_of_ranks_that_differ_are_never_joined() -> None:
    blocks = [agreement_block.write("reduce", "a.py:1", about, b"part", 0) for about in (b"a", b"b")]
    agreement_block.joined(blocks, lambda _: pytest.fail("they may have unlike lengths"))


@given(st.text(), st.text(), st.integers(0, ROOM))
def test_a_block_has_at_most_its_length(what: str, site: str, count: int) -> None:
    block = agreement_block.write(what, site, bytes(16), bytes(count), 1 << 60)
    assert len(block) <= SIZE
    assert agreement_block.read(block.ljust(SIZE, b"\0")).part == bytes(count)


def test_a_part_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=f"a part of {ROOM + 1} bytes"):
        agreement_block.write("reduce", "a.py:1", b"", bytes(ROOM + 1), 0)
