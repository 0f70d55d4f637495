"""The ends of a script's loops."""

from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import pytest
import torch
from accel_rehearse.rehearsal import Rehearsal

WORDS, IMAGES = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"input_ids": WORDS, "attention_mask": WORDS[:, :4].bool(), "labels": WORDS[:, 0]}, 5),
        ((WORDS.int(), WORDS[:, :3]), 5),
        ((IMAGES, WORDS[:, 0]), 0),
        (torch.zeros(2, 7), 0),
    ],
)
def test_the_tokens_of_a_batch_are_counted(batch: object, tokens: int) -> None:
    rehearsal = Rehearsal(3, cpu=True)
    served = rehearsal._bounded(lambda loader: iter([batch] * 3))(object())
    next(served)
    assert rehearsal._tokens == tokens
    assert len([*served]) == 1  # a pass in which nothing is trained has two batches


def test_a_pass_that_no_line_of_the_user_has_begun_has_no_known_end() -> None:
    """As one that a thread reads, or one of a package that is installed and run by `-m`."""
    rehearsal = Rehearsal(3, cpu=True)
    loader = object()
    served = rehearsal._bounded(lambda _: iter([IMAGES]))(loader)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(next, served).result() is IMAGES
    assert rehearsal._passing == [(loader, 0, inf)]


@pytest.mark.parametrize(("batches", "words"), [(range(2), "2"), (iter(()), "an unknown number of")])
def test_the_call_of_a_training_says_its_batches(batches: Any, words: str) -> None:
    rehearsal = Rehearsal(3, cpu=True)
    rehearsal._passing = [(batches, 0, inf)]
    rehearsal.loss(IMAGES, None)
    assert [call for call, _ in rehearsal.exchanges.calls] == [f"training on {words} batches"]
