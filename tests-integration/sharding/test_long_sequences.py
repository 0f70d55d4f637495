"""Sequences that are divided over ranks train as on one process."""

from functools import cache
from importlib.util import find_spec

import pytest
from accel_testing import MakePool, ProcessPool
from long_sequences.models import LAYOUTS, LongCase, train_all
from trained_runs import Trained, assert_same

pytestmark = [
    pytest.mark.skipif(not (find_spec("transformers") and find_spec("peft")), reason="a library is not installed"),
    # peft asks models of Transformers for a name that is going to be another
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]

#: all five models, and each feature at least once; without weights, the mean of unlike rows needs one data rank
EXACT = [
    LongCase("gpt2", length=21, every=2, weighted=True),
    LongCase("llama", packed=True, weighted=True, recompute=True),
    LongCase("qwen3", weighted=True, padded=True, adapters=True),
    LongCase("mistral", length=26, weighted=True, packed=True),
    LongCase("gpt_oss", weighted=True, padded=True, every=2),
]


@cache
def on_one_process(case: LongCase) -> Trained:
    return train_all([case], "one process")[0]


def check(pool: ProcessPool, cases: list[LongCase], layout: str) -> None:
    for by_rank in pool.run(train_all, cases, layout, timeout_s=110):
        for case, found in zip(cases, by_rank, strict=True):
            assert_same(found, on_one_process(case._replace(recompute=False, fsdp=False)), 1e-9)


def test_two_processes_that_share_sequences_train_as_one(world: MakePool) -> None:
    """Five models; packed documents, padding, windows, recomputation, adapters; losses that are means."""
    pool = world(2)  # one for all layouts: each rank of it imports Transformers for 2 s
    plain = [case._replace(weighted=False) for case in EXACT]
    for layout in ("sp", "cp"):
        check(pool, plain, layout)
    check(pool, [EXACT[1]._replace(fsdp=True)], "sp")


def test_four_processes_that_share_sequences_train_as_one(world: MakePool) -> None:
    """Beside copies and beside shards, on four ranks, and by both ways together; losses that are sums by weight."""
    pool = world(4)
    check(pool, EXACT[:2], "sp and ddp")
    check(pool, EXACT[2:4], "cp and ddp")
    check(pool, EXACT[1:3], "sp and fsdp2")
    check(pool, EXACT[3:], "cp and fsdp2")
    check(pool, EXACT[:1], "sp 4")
    check(pool, EXACT[3:4], "cp 4")
    check(pool, EXACT[4:], "sp and cp")


@pytest.mark.soak(only=True)
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "one process"])
def test_every_model_trains_with_everything_in_every_layout(world: MakePool, layout: str) -> None:
    size = 1
    for one in LAYOUTS[layout].values():
        size *= one
    cases = [
        # of gpt-oss, transformers tells no documents apart on one process
        LongCase(model, length, every, True, padded, packed=not padded and model != "gpt_oss", recompute=recompute)
        for model in ("gpt2", "llama", "qwen3", "mistral", "gpt_oss")
        for length, every, padded, recompute in [(24, 2, True, False), (19, 1, False, True)]
    ]
    check(world(size), cases, layout)
