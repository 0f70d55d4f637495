"""What a model can do once it is sharded: evaluation, buffers, methods of its own, several models, options."""

import logging
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from accel import Accelerator, AutocastKwargs, FullyShardedDataParallelPlugin
from accel_state import release
from accel_testing import MakePool
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from whole_tensors import whole

WIDTH = 4


def layers(*, seed: int = 0, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]
    inner = [nn.BatchNorm1d(WIDTH)] if norm else []
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *inner, nn.Sequential(*blocks), nn.Linear(WIDTH, WIDTH)).double()


def rows(step: int, size: int = 4) -> Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def share(accelerator: Accelerator, batch: Tensor) -> Tensor:
    return batch.chunk(accelerator.num_processes)[accelerator.process_index]


# Evaluation in the middle of training


def evaluated_between(strategy: str, with_gradients: bool) -> tuple[list[Tensor], bool]:
    """A forward without backward, between a backward and its step, must leave no weight of before the step behind."""
    accelerator = Accelerator(cpu=True, strategy=strategy)
    model = layers()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    seen, sharded = [], []
    for step in range(3):
        accelerator.backward(model(share(accelerator, rows(step))).square().mean())
        with torch.set_grad_enabled(with_gradients):
            model(rows(0))
        sharded.append(all(isinstance(parameter, DTensor) for parameter in model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            seen.append(model(rows(9)))
    return seen, all(sharded)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_an_evaluation_before_the_step_leaves_no_old_weights_behind(world: MakePool, with_gradients: bool) -> None:
    """T10: a batch whose loss is left out is such an evaluation, with gradients."""
    wanted, _ = evaluated_between("auto", with_gradients)
    for seen, sharded in world(2).run(evaluated_between, "fsdp2", with_gradients):
        assert sharded is not with_gradients, "without gradients all parameters are parts again"
        torch.testing.assert_close(seen, wanted)


def running_statistics(strategy: str) -> tuple[Tensor, Tensor]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    model = layers(norm=True)
    model = accelerator.prepare(model)
    for step in range(3):
        model(share(accelerator, rows(step, 8)))
    model.eval()
    outputs = model(rows(9)).detach()
    statistics = cast("nn.BatchNorm1d", accelerator.unwrap_model(model)[1]).running_mean
    return outputs, cast("Tensor", statistics).clone()


def test_running_statistics_are_those_of_rank_0_as_in_ddp(world: MakePool) -> None:
    pool = world(2)
    wanted = pool.run(running_statistics, "ddp")
    assert torch.equal(wanted[0][1], wanted[1][1])
    for found in pool.run(running_statistics, "fsdp2"):
        torch.testing.assert_close(found, wanted[0])


@dataclass
class Output:
    logits: Tensor
    hidden: list[Tensor]


class Normalised(nn.Module):
    """Has running statistics, and returns a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.last = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Output:
        hidden = self.norm(self.inner(x))
        return Output(self.last(hidden), [hidden])


def trained_in_half(strategy: str, precision: str) -> tuple[set[torch.dtype], list[Tensor]]:
    release()
    accelerator = Accelerator(cpu=True, strategy=strategy, mixed_precision=precision)
    torch.manual_seed(0)
    model = Normalised()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    kinds, losses = set[torch.dtype](), []
    for step in range(3):
        output = model(share(accelerator, rows(step, 8).float()))
        loss = output.logits.square().mean()
        kinds |= {output.logits.dtype, output.hidden[0].dtype, loss.dtype}
        losses.append(loss.detach())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    statistics = accelerator.unwrap_model(model).norm.running_mean
    assert statistics is not None
    return kinds, [*losses, statistics.clone()]


def test_batch_norm_and_dataclasses_in_half_precision_are_as_in_ddp(world: MakePool) -> None:
    pool = world(2)
    for precision in ("bf16", "fp16"):
        wanted = pool.run(trained_in_half, "ddp", precision)
        for (kinds, found), (_, there) in zip(pool.run(trained_in_half, "fsdp2", precision), wanted, strict=True):
            assert kinds == {torch.float32}
            torch.testing.assert_close(found, there)


# Methods of the user's own


class Retriever(nn.Module):
    """Has a method beside its forward that calls a module."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def encode(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = torch.tanh(self.encoder(inputs))
        return outputs

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.encode(inputs))
        return outputs

    generate = encode


def methods() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, asked in (("encode", ["encode"]), ("generate", None)):
        torch.manual_seed(0)
        raw = Retriever()
        wanted = raw.encode(torch.ones(2, WIDTH)).detach()
        plugin = FullyShardedDataParallelPlugin(forward_methods=asked)
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
        keys = list(raw.state_dict())
        model = accelerator.prepare(raw)
        encode = getattr(model, name)
        with torch.no_grad():
            found[name] = torch.allclose(encode(torch.ones(2, WIDTH)), wanted)
        found[f"{name} leaves parts"] = all(isinstance(parameter, DTensor) for parameter in model.parameters())
        accelerator.backward(encode(torch.ones(2, WIDTH)).sum())
        found[f"{name} has gradients"] = isinstance(raw.encoder.weight.grad, DTensor)
        found["the class"] = isinstance(model, Retriever) and model is accelerator.unwrap_model(model) is raw
        found["the keys"] = list(model.state_dict()) == keys
        release()
    with pytest.raises(ValueError, match="Retriever has no method 'embed'"):
        Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(forward_methods=["embed"])).prepare(
            Retriever()
        )
    return found


def test_a_model_keeps_its_class_its_keys_and_its_methods(world: MakePool) -> None:
    """T31."""
    for found in world(2).run(methods):
        assert all(found.values()), found


def methods_in_bf16() -> tuple[torch.dtype, float, bool]:
    torch.manual_seed(0)
    model = Retriever()
    with torch.autocast("cpu", torch.bfloat16):
        wanted = model.encode(torch.ones(2, WIDTH)).detach().float()
    plugin = FullyShardedDataParallelPlugin(forward_methods=["encode"])
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, mixed_precision="bf16")
    accelerator.prepare(model)
    outputs = model.encode(torch.ones(2, WIDTH))
    accelerator.backward(outputs.float().sum())
    gradient = cast("Tensor", model.encoder.weight.grad)
    return outputs.dtype, (outputs.float() - wanted).abs().max().item(), gradient.dtype == torch.float32


def test_a_method_computes_in_the_precision_of_the_run(world: MakePool) -> None:
    """T31."""
    for dtype, error, in_float32 in world(2).run(methods_in_bf16):
        assert dtype == torch.bfloat16
        assert error < 1e-2
        assert in_float32


def outputs_in_bf16() -> list[torch.dtype]:
    dtypes = []
    for keep in (False, True):
        kept = AutocastKwargs(keep_outputs=keep)
        accelerator = Accelerator(cpu=True, strategy="fsdp2", mixed_precision="bf16", kwargs_handlers=[kept])
        dtypes.append(accelerator.prepare(Retriever())(torch.ones(2, WIDTH)).dtype)
        release()
    return dtypes


def test_outputs_have_the_dtype_that_was_asked_for(world: MakePool) -> None:
    """T38."""
    assert world(2).run(outputs_in_bf16) == [[torch.float32, torch.bfloat16]] * 2


# Several models, prepared again


def adversaries(strategy: str) -> list[Tensor]:
    """Two models of one loss each; the second is prepared with an optimizer that has a state."""
    accelerator = Accelerator(cpu=True, strategy=strategy)
    maker, judge = layers(seed=1), layers(seed=2)
    made = torch.optim.Adam(maker.parameters(), lr=0.1)
    judged = torch.optim.Adam(judge.parameters(), lr=0.1)
    judge(rows(5)).square().mean().backward()
    judged.step()
    judged.zero_grad()
    maker, judge, made, judged = accelerator.prepare(maker, judge, made, judged)
    assert accelerator.prepare(judge) is judge
    for step in range(3):
        batch = share(accelerator, rows(step))
        accelerator.backward((judge(batch) - judge(maker(batch).detach())).square().mean())
        judged.step()
        judged.zero_grad()
        accelerator.backward(judge(maker(batch)).square().mean())
        made.step()
        made.zero_grad()
        judged.zero_grad()
    return [whole(tensor) for model in (maker, judge) for tensor in model.state_dict().values()]


def test_two_models_and_a_state_from_before_train_as_on_one_process(world: MakePool) -> None:
    wanted = adversaries("auto")
    for found in world(2).run(adversaries, "fsdp2"):
        torch.testing.assert_close(found, wanted)


def prepared_again() -> list[Any]:
    accelerator = Accelerator(cpu=True, strategy="fsdp2")
    model = layers()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    parameters = list(model.parameters())
    accelerator.free_memory()
    again = Accelerator(cpu=True, strategy="fsdp2")
    model = again.prepare(model)
    judge = again.prepare_model(layers(), evaluation_mode=True)
    return [
        all(now is before for now, before in zip(model.parameters(), parameters, strict=True)),
        not isinstance(judge, FSDPModule),
        torch.equal(judge(rows(0)), layers()(rows(0))),
        isinstance(again.prepare_optimizer(cast("Any", optimizer).optimizer).param_groups[0]["params"][0], DTensor),
    ]


def test_a_sharded_model_is_prepared_again_as_it_is(world: MakePool) -> None:
    assert world(2).run(prepared_again) == [[True] * 4] * 2


# Options of sharding


def with_options(strategy: str, options: dict[str, Any]) -> tuple[list[Tensor], list[bool], list[torch.dtype]]:
    ways: dict[str, Any] = {"fsdp_plugin": FullyShardedDataParallelPlugin(**options)} if strategy == "fsdp2" else {}
    accelerator = Accelerator(cpu=True, strategy=strategy, **ways)
    model = layers()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    for step in range(3):
        accelerator.backward(model(share(accelerator, rows(step))).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    parameters = list(model.parameters())
    sharded = [isinstance(parameter, DTensor) for parameter in parameters]
    return [whole(parameter) for parameter in parameters], sharded, [parameter.dtype for parameter in parameters]


@pytest.mark.parametrize(
    ("options", "left_whole"),
    [
        ({"ignored_modules": "0"}, [0, 1]),
        ({"cpu_offload": True}, []),
        ({"auto_wrap_policy": "size_based_wrap", "min_num_params": 20}, []),
        ({"auto_wrap_policy": "no_wrap"}, []),
        ({"auto_wrap_policy": lambda model: list(model[1]), "reshard_after_forward": 1}, []),
    ],
    ids=["ignored", "offload", "by size", "no wrap", "a function"],
)
def test_options_change_what_is_sharded_and_no_number(
    world: MakePool, options: dict[str, Any], left_whole: list[int]
) -> None:
    if callable(options.get("auto_wrap_policy")):
        options = {**options, "auto_wrap_policy": second_of}
    wanted, *_ = with_options("auto", {})
    for weights, sharded, dtypes in world(2).run(with_options, "fsdp2", options):
        torch.testing.assert_close(weights, wanted)
        assert [place for place, is_part in enumerate(sharded) if not is_part] == left_whole
        assert set(dtypes) == {torch.float64}


def warned(plugin: FullyShardedDataParallelPlugin, model: nn.Module) -> list[str]:
    handler, said = logging.Handler(), list[str]()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("accel").addHandler(handler)
    Accelerator(cpu=True, fsdp_plugin=plugin).prepare(model)
    logging.getLogger("accel").removeHandler(handler)
    release()
    return said


def warnings_of_no_blocks() -> list[list[str]]:
    meant = FullyShardedDataParallelPlugin(auto_wrap_policy="no_wrap")
    usual = FullyShardedDataParallelPlugin()
    return [warned(usual, Retriever()), warned(meant, Retriever()), warned(usual, layers())]


def test_a_model_without_blocks_is_gathered_whole_with_a_warning(world: MakePool) -> None:
    main, other = world(2).run(warnings_of_no_blocks)
    assert [len(said) for said in main] == [1, 0, 0]
    assert "no blocks were found in Retriever, so its forward gathers all of its weights at once" in main[0][0]
    assert other == [[], [], []]


def second_of(model: nn.Module) -> list[nn.Module]:
    return list(cast("nn.Sequential", model)[1].children())


def in_own_precision() -> tuple[set[torch.dtype], torch.dtype]:
    own = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(mixed_precision_policy=own))
    model = layers().bfloat16()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    outputs = model(rows(0))
    accelerator.backward(outputs.float().square().mean())
    optimizer.step()
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    return {tensor.dtype for tensor in (*held, *states, *model.parameters())}, outputs.dtype


def test_masters_are_float32_under_a_policy_of_the_users_own(world: MakePool) -> None:
    """T10."""
    assert world(2).run(in_own_precision) == [({torch.float32}, torch.bfloat16)] * 2
