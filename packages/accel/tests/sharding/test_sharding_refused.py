"""Wrong set-ups of sharded training are refused in words, on every rank, before anything is sharded."""

import re
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from accel import (
    Accelerator,
    ActivationCheckpointingKwargs,
    FullyShardedDataParallelPlugin,
    GradScalerKwargs,
    LocalSGD,
    ParallelismConfig,
)
from accel_parallel import BrokenInvariant
from accel_parallel.invariants import ModelFacts
from accel_state import release
from accel_testing import MakePool
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.optim import SGD


def sharded(**options: Any) -> Accelerator:
    return Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(**options))


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def an_optimizer_of_another_model() -> None:
    mine = model()
    try:
        sharded().prepare(mine, SGD(model().parameters(), lr=0.1))
    finally:
        assert not any(isinstance(module, FSDPModule) for module in mine.modules()), "nothing was sharded"


def an_optimizer_that_comes_later() -> None:
    accelerator, mine = sharded(), model()
    optimizer = SGD(mine.parameters(), lr=0.1)
    accelerator.prepare(mine)
    accelerator.prepare(optimizer)


def an_optimizer_that_is_prepared_by_itself() -> None:
    accelerator, mine = sharded(), model()
    optimizer = SGD(mine.parameters(), lr=0.1)
    accelerator.prepare_model(mine)
    accelerator.prepare_optimizer(optimizer)


def sizes_for_more_processes() -> None:
    Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=3))


def copies_that_do_not_divide() -> None:
    Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_replicate_size=3, dp_shard_size=2))


def a_plan_that_names_no_module() -> None:
    config = ParallelismConfig(tp_size=2, tp_plan={"blocks.*": "colwise"})
    Accelerator(cpu=True, parallelism_config=config).prepare(model())


def a_plan_that_is_missing() -> None:
    Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=2)).prepare(model())


def divided_layers_compiled_and_recomputed() -> None:
    Accelerator(
        cpu=True,
        dynamo_backend="aot_eager",
        parallelism_config=ParallelismConfig(tp_size=2),
        kwargs_handlers=[ActivationCheckpointingKwargs()],
    )


def numbers_that_only_rank_0_has() -> None:
    config = ParallelismConfig(tp_size=2, tp_plan={"0": "colwise"})
    accelerator = Accelerator(cpu=True, parallelism_config=config)
    accelerator.prepare(model().to("meta" if accelerator.process_index else "cpu"))


def a_strategy_that_keeps_models_whole() -> None:
    Accelerator(cpu=True, strategy="ddp", parallelism_config=ParallelismConfig(tp_size=2))


def an_option_of_fsdp1() -> None:
    sharded(sharding_strategy="HYBRID_SHARD")


def half_precision_that_nobody_scales() -> None:
    sharded(mixed_precision_policy=MixedPrecisionPolicy(param_dtype=torch.float16))


def half_precision_without_its_scaler() -> None:
    Accelerator(cpu=True, strategy="fsdp2", mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(enabled=False)])


def blocks_that_are_not_there() -> None:
    sharded(transformer_cls_names_to_wrap=["LlamaLayer"]).prepare(model())


def trained_in_two_dtypes() -> None:
    mine = model()
    mine[1].to(torch.bfloat16)
    sharded(auto_wrap_policy="no_wrap").prepare(mine)


def sharded_in_part() -> None:
    accelerator, mine = sharded(), model()
    assert accelerator.run.device_mesh is not None
    fully_shard(mine[0], mesh=accelerator.run.device_mesh["dp_shard"])
    accelerator.prepare(mine)


def modules_of_another_model() -> None:
    sharded(ignored_modules="decoder.*").prepare(model())


def local_steps() -> None:
    accelerator = sharded()
    LocalSGD(accelerator, accelerator.prepare(model()), 2)


def uneven_inputs() -> None:
    accelerator = sharded()
    with accelerator.join_uneven_inputs([accelerator.prepare(model())]):
        pass


REFUSED: list[tuple[Callable[[], None], str]] = [
    (an_optimizer_of_another_model, "optimizer 0 (SGD): 4 of its 4 parameters, of shapes (4, 4), (4,), (2, 4), (2,)"),
    (an_optimizer_that_comes_later, "Pass the model and its optimizer to one prepare(model, optimizer)"),
    (an_optimizer_that_is_prepared_by_itself, "4 of its 4 parameters, of shapes (4, 4), (4,), (2, 4), (2,)"),
    (sizes_for_more_processes, "is for 3 processes, and this job has 2"),
    (copies_that_do_not_divide, "dp_replicate 3 x dp_shard 2 x tp 1 is for 6 processes, and this job has 2"),
    (a_plan_that_names_no_module, "blocks.*: names no module; the first modules are 0, 1"),
    (a_plan_that_is_missing, "tensor parallelism needs a plan, and Sequential has none of its own (tp_plan)"),
    (divided_layers_compiled_and_recomputed, "torch.compile cannot recompute layers that are divided (tp_size)"),
    (numbers_that_only_rank_0_has, "rank 1 has 0.weight: float32 (4, 4), trained, on the meta device"),
    (a_strategy_that_keeps_models_whole, "it keeps models whole, and dp_shard_size=1, tp_size=2 divide them"),
    (an_option_of_fsdp1, "sharding_strategy='HYBRID_SHARD' is an option of FSDP1: "),
    (
        half_precision_that_nobody_scales,
        'the loss is not scaled: small gradients become zero; ask for mixed_precision="fp16"',
    ),
    (half_precision_without_its_scaler, "GradScalerKwargs(enabled=False): in fp16 small gradients become zero"),
    (blocks_that_are_not_there, "Sequential has no module of the class LlamaLayer; it has Linear"),
    (trained_in_two_dtypes, "trained parameters of one block (Sequential) are of torch.bfloat16 and torch.float32"),
    (
        sharded_in_part,
        "1 modules of Sequential are sharded already (0): models that share them have to be parts of one model",
    ),
    (modules_of_another_model, "ignored_modules: Sequential has no decoder.*"),
    (local_steps, "each rank holds a part of each parameter, and cannot train alone; leave LocalSGD out"),
    (uneven_inputs, "join_uneven_inputs with sharded models (fsdp2)"),
]


def all_refusals() -> int:
    for wrong, words in REFUSED:
        with pytest.raises(ValueError, match=re.escape(words)):
            wrong()
        release()
    return len(REFUSED)


def test_wrong_setups_are_refused_in_words(world: MakePool) -> None:
    """S130, T10."""
    assert world(2).run(all_refusals) == [len(REFUSED)] * 2


def channels_last() -> None:
    with pytest.raises(NotImplementedError, match="does not support non-contiguous parameters"):
        sharded().prepare(cast("Any", nn.Conv2d(2, 2, 3)).to(memory_format=torch.channels_last))


def test_weights_in_another_layout_stay_refused_by_torch(world: MakePool) -> None:
    world(2).run(channels_last)


def unlike_models() -> list[str]:
    accelerator, said = sharded(), []
    rank = accelerator.process_index
    models = [
        model().to(torch.bfloat16 if rank else torch.float32),
        nn.Sequential(nn.Linear(4, 4 + rank), nn.Linear(4 + rank, 2)),
        nn.Sequential(*model(), *([nn.Linear(2, 2)] if rank else [])),
        model().requires_grad_(rank == 0),
    ]
    for mine in models:
        with pytest.raises(BrokenInvariant) as refusal:
            accelerator.prepare(mine)
        said.append(str(refusal.value))
    return said


def test_models_that_differ_between_ranks_are_refused_with_what_differs(world: MakePool) -> None:
    told = world(2).run(unlike_models)
    assert told[0] == told[1], "every rank says the same"
    dtypes, shapes, layers, frozen = told[0]
    assert "rank 1 has 0.weight: bfloat16 (4, 4), trained\n" in dtypes
    assert "rank 1 lacks 0.weight: float32 (4, 4), trained\n" in dtypes
    assert "rank 1 has 0.weight: float32 (5, 4), trained\n" in shapes
    assert "rank 1 has 2.weight: float32 (2, 2), trained\n" in layers
    assert "rank 1 has 0.weight: float32 (4, 4)\n" in frozen


def test_what_sharding_must_not_change_is_looked_at() -> None:
    """T10: ties, names, trained numbers and master weights."""
    before = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 1))
    before[1].weight = before[0].weight
    facts = ModelFacts.of(before)
    facts.check(before, torch.float32)
    untied: Any = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 1)).bfloat16()
    untied[2].bias = None
    untied.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(BrokenInvariant) as refusal:
        facts.check(untied, torch.float32)
    assert str(refusal.value).splitlines()[1:] == [
        "  2.bias is gone",
        "  scale is new",
        "  1.weight is no longer tied to 0.weight",
        "  22 numbers are trained, and before it were 13",
        "  0.weight is torch.bfloat16, and an optimizer needs torch.float32",
        "  1.weight is torch.bfloat16, and an optimizer needs torch.float32",
        "  2.weight is torch.bfloat16, and an optimizer needs torch.float32",
    ]
