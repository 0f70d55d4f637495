"""Models of Transformers train the same on one process, with DistributedDataParallel, and sharded."""

from functools import cache
from importlib.util import find_spec
from itertools import product

import pytest
from accel_testing import MakePool, ProcessPool
from suite.soak import in_soak
from toy_language_models import Case, train, train_all
from trained_runs import Trained, assert_same

pytestmark = [
    pytest.mark.skipif(not (find_spec("transformers") and find_spec("peft")), reason="a library is not installed"),
    # peft asks models of Transformers for a name that is going to be another
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    # and looks for the experts of Mixtral as they were packed before
    pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning"),
]

CASES = [
    Case("gpt2", every=2, weighted=True),
    Case("gpt2", dtype="float32"),
    Case("llama", recompute=True),
    Case("llama", every=2, adapters=True),
    Case("bert", frozen=True),
    Case("mixtral", weighted=True),
]
#: of models with a plan of their own that divides layers
DIVIDED = [
    Case("llama", every=2, weighted=True, frozen=True),
    Case("llama", recompute=True),
    Case("llama", every=2, adapters=True),
    Case("qwen3", every=2),
    Case("qwen3", dtype="float32"),
]
#: what the suite trains of both
SHORT = [
    Case("gpt2", every=2, weighted=True),
    Case("llama", every=2, adapters=True, recompute=True),
    Case("bert", frozen=True),
    Case("mixtral", weighted=True),
    Case("gpt2", dtype="float32"),
]
SHORT_DIVIDED = [
    Case("llama", every=2, weighted=True, frozen=True, recompute=True),
    Case("llama", every=2, adapters=True),
    Case("qwen3", dtype="float32"),
]
#: of each kind of layout how many processes it takes
LAYOUTS = {"ddp": 2, "fsdp2": 2, "hsdp": 4}
DIVIDING = {"tp": 2, "fsdp2 and tp": 4}
TOLERANCES = {"float64": 1e-9, "float32": 1e-5}


@cache
def on_one_process(case: Case) -> Trained:
    return train_all([case], "one process")[0]


def check(pool: ProcessPool, cases: list[Case], layout: str) -> None:
    for by_rank in pool.run(train_all, cases, layout, timeout_s=110):
        for case, found in zip(cases, by_rank, strict=True):
            wanted = on_one_process(case._replace(backend="no", recompute=False))
            assert_same(found, wanted, TOLERANCES[case.dtype])


def test_two_processes_train_as_one(world: MakePool) -> None:
    """S128, T10: losses, norms, weights; windows, weighted losses, ties, frozen and adapted models, divided layers."""
    pool = world(2)  # one for all layouts: each rank of it imports Transformers for 2 s
    for layout, cases in {"ddp": SHORT, "fsdp2": SHORT, "tp": SHORT_DIVIDED}.items():
        check(pool, [case._replace(steps=2) for case in cases], layout)


def test_four_processes_train_as_one(world: MakePool) -> None:
    """T10: windows, ties, recomputation and adapters, also beside divided weights, in layouts of two dimensions."""
    pool = world(4)
    check(pool, [case._replace(steps=2) for case in SHORT[:2]], "hsdp")
    check(pool, [case._replace(steps=2) for case in SHORT_DIVIDED[:2]], "fsdp2 and tp")


@pytest.mark.soak(only=True)
@pytest.mark.parametrize("layout", LAYOUTS | DIVIDING)
def test_twenty_steps_train_as_on_one_process(world: MakePool, layout: str) -> None:
    check(world((LAYOUTS | DIVIDING)[layout]), CASES if layout in LAYOUTS else DIVIDED, layout)


@pytest.mark.soak(only=True)
def test_sharded_and_divided_layers_compiled_by_blocks_train_alike(world: MakePool) -> None:
    check(world(4), [Case("llama", backend="aot_eager", steps=2)], "fsdp2 and tp")


@pytest.mark.soak(only=True)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["gpt2", "llama", "bert", "mixtral"])
def test_every_model_trains_with_everything_in_every_layout(world: MakePool, model: str, layout: str) -> None:
    cases = [
        Case(
            model, every=4, clip=clip, weighted=weighted, frozen=frozen, adapters=adapters, recompute=recompute, steps=8
        )
        for clip, weighted, recompute in product([True, False], repeat=3)
        for frozen, adapters in [(True, False), (False, True), (False, False)]
    ]
    for start in range(0, len(cases), 6):
        check(world(LAYOUTS[layout]), cases[start : start + 6], layout)


@pytest.mark.parametrize("regional", [True, *in_soak(False)])
def test_a_compiled_model_trains_as_one_process_sharded_or_divided(world: MakePool, regional: bool) -> None:
    """S43, T10: block by block and whole, recomputed and not.

    Compiled code that is given the result of an exchange which has not ended loses its gradient.
    """
    pool = world(2)  # one for both layouts: each rank of it imports the compiler
    compiled = Case("gpt2", backend="aot_eager", regional=regional, steps=2)
    check(pool, [compiled._replace(recompute=True), compiled], "fsdp2")
    if regional:
        check(pool, [compiled._replace(model="llama")], "tp")


def test_bf16_trains_with_master_weights_as_ddp_does(world: MakePool) -> None:
    """T10: the dtype of master weights is looked at in the loop."""
    case, pool = Case("llama", precision="bf16", dtype="float32"), world(2)
    wanted = pool.run(train, case, "ddp", timeout_s=60)[0]
    assert wanted.losses[-1] < wanted.losses[0] - 0.5
    for found in pool.run(train, case, "fsdp2", timeout_s=60):
        for loss, other in zip(found.losses, wanted.losses, strict=True):
            assert abs(loss - other) < 2e-2, "bfloat16 has eight bits"
