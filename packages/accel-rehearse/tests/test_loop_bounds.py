"""The ends of a script's loops."""

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
