"""DeepSpeed's engine trains as DistributedDataParallel does, behind the same methods."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from accel import Accelerator, DeepSpeedPlugin, GradScalerKwargs
from accel.configuration import GradientAccumulationPlugin
from accel.utils import DummyOptim, DummyScheduler, load_checkpoint_in_model
from accel_testing import MakePool
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trained_runs import Trained, assert_same

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed: nox -s deepspeed")

NEEDS_FP16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_fp16_supported(), reason="DeepSpeed refuses fp16 on a CPU without its instructions"
)
WIDTH = 8


class Words(nn.Module):
    """Tied, frozen and several small weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.frozen(self.embedding(tokens))
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        outputs: Tensor = self.head(hidden)
        return outputs


class Loop(NamedTuple):
    every: int = 1
    precision: str = "no"
    weighted: bool = False
    clip: float | None = 0.5
    end: str = "flush"
    samples: int = 48


def train(ways: dict[str, Any], loop: Loop) -> Trained:
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=loop.precision,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=loop.every, at_epoch_end=loop.end),
        **ways,
    )
    torch.manual_seed(0)
    model = Words()
    groups: list[dict[str, Any]] = [
        {"params": list(model.blocks.parameters())},
        {"params": [model.embedding.weight], "lr": 0.02},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    tokens = torch.arange(loop.samples * 3).view(loop.samples, 3) * 7 % 11
    loader = DataLoader(TensorDataset(tokens), batch_size=12 // accelerator.num_processes)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses, norms = [], []
    for _ in range(2):
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                how = "sum" if loop.weighted else "mean"
                targets = (inputs * 3 % 11).flatten()
                loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets, reduction=how)
                accelerator.backward(loss, weight=inputs.numel() if loop.weighted else None)
                if accelerator.sync_gradients and loop.clip is not None:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), loop.clip).item())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return Trained(losses, norms, accelerator.get_state_dict(model))


LOOPS = [
    Loop(),
    Loop(every=3),
    Loop(every=3, weighted=True),
    Loop(every=3, end="drop"),
    Loop(every=3, end="carry", clip=None),
]


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_all_stages_of_zero_train_as_ddp(world: MakePool, loop: Loop) -> None:
    """S114: losses, norms and weights, at windows that end early too."""
    pool = world(2)
    wanted = pool.run(train, {"strategy": "ddp"}, loop)[0]
    offloaded = DeepSpeedPlugin(zero_stage=2, offload_optimizer_device="cpu")
    for plugin in (*(DeepSpeedPlugin(zero_stage=stage) for stage in range(4)), offloaded):
        for found in pool.run(train, {"deepspeed_plugin": plugin}, loop):
            assert_same(found, wanted, 1e-6)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 3e-2), pytest.param("fp16", 5e-3, marks=NEEDS_FP16)])
def test_half_precision_trains_as_ddp_does(world: MakePool, precision: str, tolerance: float) -> None:
    pool, loop = world(2), Loop(every=3, precision=precision)
    scale = [GradScalerKwargs(init_scale=256.0)]
    wanted = pool.run(train, {"strategy": "ddp", "kwargs_handlers": scale}, loop)[0]
    for stage in (1, 2, 3):
        # gradients are in half precision too: a smaller scale keeps them finite
        config = {"fp16": {"enabled": "auto", "initial_scale_power": 8}, "zero_optimization": {"stage": stage}}
        for found in pool.run(train, {"deepspeed_plugin": DeepSpeedPlugin(config)}, loop):
            torch.testing.assert_close(found.losses, wanted.losses, rtol=tolerance, atol=tolerance)


def overflow(stage: int) -> tuple[bool, float, float, bool]:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", deepspeed_plugin=DeepSpeedPlugin(zero_stage=stage))
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    size = 1e4 if accelerator.process_index == 1 else 1e-4
    accelerator.backward(model(torch.full((1, 4), size)).sum())
    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    schedule.step()
    skipped, rate = accelerator.optimizer_step_was_skipped, float(schedule.get_last_lr()[0])
    for _ in range(2):  # the scale falls after two overflows
        accelerator.backward(model(torch.full((1, 4), 1e-4)).sum())
        optimizer.step()
    return skipped, rate, norm, accelerator.optimizer_step_was_skipped


@NEEDS_FP16
def test_a_step_that_overflows_on_one_rank_is_skipped_by_all_and_seen(world: MakePool) -> None:
    pool = world(2)
    for stage in (1, 2, 3):
        for skipped, rate, norm, skipped_later in pool.run(overflow, stage):
            assert (skipped, rate, norm, skipped_later) == (True, 1.0, float("inf"), False)


OWN_CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.1,
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto", "warmup_max_lr": "auto"}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
}


def train_by_config(file: str) -> tuple[dict[str, Any], list[float], int, str, int]:
    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(file))
    model = Words()
    optimizer: Any = DummyOptim(model.parameters(), lr=0.5, weight_decay=0.25)
    schedule = DummyScheduler(optimizer, warmup_num_steps=4)
    loader = DataLoader(TensorDataset(torch.arange(24).view(8, 3) % 11), batch_size=1)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    rates = []
    for (inputs,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(inputs).square().mean())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        rates.append(float(schedule.get_last_lr()[0]))
    core: Any = model
    inner = type(optimizer.optimizer).__name__
    return core.config, rates, accelerator.gradient_accumulation_steps, inner, core.global_steps


def test_its_own_config_is_honoured(world: MakePool, tmp_path: Path) -> None:
    """Optimizer, schedule, windows and clipping are those of the file."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(OWN_CONFIG))
    for config, rates, every, inner, steps in world(2).run(train_by_config, str(file)):
        assert (every, inner, steps) == (2, "AdamW", 2)
        assert config["gradient_clipping"] == 0.1
        assert config["train_batch_size"] == 4
        assert config["optimizer"]["params"]["lr"] == 0.5
        assert "reduce_bucket_size" not in config["zero_optimization"]
        assert rates == [0.0, 0.0, 0.0, pytest.approx(0.25)]


def refusals() -> dict[str, str]:
    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(zero_stage=2, gradient_clipping=0.5))
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    double = nn.Linear(4, 4, dtype=torch.float64)
    told: dict[str, str] = {}

    def refused(name: str, call: Callable[[], Any]) -> None:
        with pytest.raises((ValueError, RuntimeError)) as error:
            call()
        told[name] = str(error.value)

    def two_losses() -> None:
        for _ in range(2):
            accelerator.backward(ready(torch.ones(2, 4)).sum())

    refused("model alone", lambda: accelerator.prepare(nn.Linear(4, 4)))
    refused("float64", lambda: accelerator.prepare(double, torch.optim.AdamW(double.parameters())))
    refused("stand-in", lambda: accelerator.prepare(model, DummyOptim(model.parameters())))
    ready, prepared = accelerator.prepare(model, optimizer)
    refused(
        "second model", lambda: accelerator.prepare(nn.Linear(4, 4), torch.optim.AdamW(nn.Linear(4, 4).parameters()))
    )
    refused("no_sync", lambda: accelerator.no_sync(ready))
    refused("step", prepared.step)
    refused("two losses", two_losses)
    refused("clip_grad_value_", lambda: accelerator.clip_grad_value_(ready.parameters(), 1.0))
    refused("another norm", lambda: accelerator.clip_grad_norm_(ready.parameters(), 1.0, norm_type=1.0))
    refused("some", lambda: accelerator.clip_grad_norm_([model.weight], 0.5))
    refused("stranger", lambda: accelerator.prepare_optimizer(torch.optim.AdamW(model.parameters())))
    with pytest.raises(ValueError, match="join_uneven_inputs with DeepSpeed"), accelerator.join_uneven_inputs([ready]):
        pass
    return told


def test_what_deepspeed_cannot_do_is_refused_in_words(world: MakePool) -> None:
    """Among them no_sync: the engine reduces gradients in its own backward."""
    for told in world(2).run(refusals):
        words = {
            "model alone": "the model and its optimizer in one call of prepare, found 0 optimizers",
            "float64": "2 float64 parameters in float32, such as weight",
            "stand-in": 'a DummyOptim stands for the section "optimizer", and there is none',
            "second model": "it trains one model for each Accelerator",
            "no_sync": "no_sync: DeepSpeed's engine reduces gradients in its own backward; gather micro-batches with",
            "step": "no loss of this micro-batch went through accelerator.backward",
            "two losses": "a second loss at the end of a window",
            "clip_grad_value_": "use clip_grad_norm_",
            "another norm": "max_norm=1.0 contradicts gradient_clipping=0.5",
            "some": "1 trainable parameters are left out",
            "stranger": "was not prepared with its model",
        }
        assert [name for name, text in words.items() if text not in told[name]] == []


def steps(ways: dict[str, Any], precision: str, folder: str, load: bool) -> tuple[list[float], dict[str, Tensor]]:
    """Two steps and a save, or a load; then two more."""
    accelerator = Accelerator(cpu=True, mixed_precision=precision, **ways)
    torch.manual_seed(int(load))
    model = Words()
    groups: list[dict[str, Any]] = [{"params": list(model.blocks.parameters())}, {"params": [model.embedding.weight]}]
    optimizer = torch.optim.AdamW(groups, lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    tokens = torch.arange(48).view(16, 3) * 7 % 11
    loader = DataLoader(TensorDataset(tokens), batch_size=4 // accelerator.num_processes)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses = []
    if load:
        accelerator.load_state(folder)
    for step, (inputs,) in enumerate(loader, start=2 if load else 0):
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), (inputs * 3 % 11).flatten())
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        if step == 1:
            accelerator.save_state(folder)
    return losses[-2:], accelerator.get_state_dict(model)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_run_goes_on_bit_for_bit_from_its_checkpoint(world: MakePool, tmp_path: Path, precision: str) -> None:
    pool = world(2)
    for stage in (1, 2, 3) if precision == "bf16" else (0, 1, 2, 3):
        # so small that single weights of the model are divided
        zero = {"stage": stage, "stage3_param_persistence_threshold": 10}
        ways = {"deepspeed_plugin": DeepSpeedPlugin({"zero_optimization": zero})}
        folder = str(tmp_path / str(stage))
        wanted, weights = pool.run(steps, ways, precision, folder, False)[0]
        for found, found_weights in pool.run(steps, ways, precision, folder, True):
            assert found == wanted
            assert all(torch.equal(value, weights[name]) for name, value in found_weights.items())
            assert {value.dtype for value in found_weights.values()} == {torch.float32}


def test_checkpoints_go_from_one_stage_to_another_and_to_ddp(world: MakePool, tmp_path: Path) -> None:
    pool, stages = world(2), [DeepSpeedPlugin(zero_stage=stage) for stage in (3, 1)]
    ways: list[dict[str, Any]] = [{"strategy": "ddp"}, *({"deepspeed_plugin": plugin} for plugin in stages)]
    for place, saving in enumerate(ways):
        folder = str(tmp_path / str(place))
        wanted, weights = pool.run(steps, saving, "no", folder, False)[0]
        for loading in ways:
            found, found_weights = pool.run(steps, loading, "no", folder, True)[0]
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(found_weights, weights, rtol=1e-5, atol=1e-6)


def whole_weights(folder: str) -> tuple[dict[str, Tensor], str]:
    config = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 10}}
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", deepspeed_plugin=DeepSpeedPlugin(config))
    torch.manual_seed(0)
    model = accelerator.prepare(given := Words(), torch.optim.AdamW(given.parameters()))[0]
    assert next(given.blocks.parameters()).numel() == 0  # each rank holds a part
    path = accelerator.save_model(model, folder)
    return accelerator.get_state_dict(model), str(path)


def test_weights_that_are_divided_are_saved_whole_in_float32(world: MakePool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Words()
    wanted = {name: value.bfloat16().float() for name, value in model.state_dict().items()}
    (state, path), _ = world(2).run(whole_weights, str(tmp_path))
    torch.testing.assert_close(state, wanted, rtol=0, atol=0)
    load_checkpoint_in_model(model, path)
    torch.testing.assert_close(dict(model.state_dict()), wanted, rtol=0, atol=0)


def kept_in_a_save(folder: str, stage: int) -> int:
    """Numbers that this rank has from other ranks while it saves."""
    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(zero_stage=stage))
    torch.manual_seed(0)
    model, optimizer = accelerator.prepare(given := nn.Linear(4, 4), torch.optim.AdamW(given.parameters()))
    accelerator.backward(model(torch.ones(2, 4)).sum())
    optimizer.step()
    kept: list[int] = []

    def look(models: Any, weights: list[dict[str, Tensor]], _: str) -> None:
        entries = optimizer.state_dict()["state"].values()
        of_state = [value for entry in entries for value in entry.values() if isinstance(value, Tensor) and value.dim()]
        kept.append(sum(one.numel() for one in [*weights[0].values(), *of_state]))

    accelerator.register_save_state_pre_hook(look)
    accelerator.save_state(folder)
    accelerator.load_state(folder)
    return kept[0]


@pytest.mark.parametrize("stage", [1, 3])
def test_only_the_rank_that_writes_keeps_whole_states(world: MakePool, tmp_path: Path, stage: int) -> None:
    """Of eight ranks of a machine each would have all weights and moments on the host."""
    assert world(2).run(kept_in_a_save, str(tmp_path), stage) == [3 * 20, 0]


def without_one_step(ways: dict[str, Any]) -> dict[str, Tensor]:
    """The second window of three has its gradients cleared in place of its step."""
    accelerator = Accelerator(cpu=True, **ways)
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.full((2, 4), float(step + accelerator.process_index))).square().sum())
            if step != 1:
                optimizer.step()
            optimizer.zero_grad()
    return accelerator.get_state_dict(model)


def test_gradients_that_are_cleared_in_place_of_a_step_are_gone(world: MakePool) -> None:
    pool = world(2)
    wanted = pool.run(without_one_step, {"strategy": "ddp"})[0]
    for stage in range(4):
        for found in pool.run(without_one_step, {"deepspeed_plugin": DeepSpeedPlugin(zero_stage=stage)}):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
