"""Each feature of a loop is with a model that arrives divided what it is with a whole one on one process."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, FullyShardedDataParallelPlugin, LocalSGD, ParallelismConfig, TorchDynamoPlugin
from accel_amp import local_part
from accel_state import release
from accel_testing import MakePool
from arriving.models import ALONE, VOCABULARY, Arrival, load, write_models
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader
from whole_tensors import whole

pytestmark = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("peft")), reason="a library is not installed"
)

TOKENS = torch.randint(0, VOCABULARY, (6, 2, 9), generator=torch.Generator().manual_seed(8))
STEPS = 3
WHOLE = ALONE._replace(model="mixtral")
DIVIDED = Arrival("mixtral", {"tp_size": 2}, {"tp_size": 2})
SPREAD = Arrival("mixtral", {"fsdp_size": 2, "ep_size": 2}, {"dp_shard_size": 2})


class Loop:
    """A loop over a model, an optimizer, and tokens that are given by hand."""

    def __init__(self, models: Path, arrival: Arrival, *, dtype: str = "float64", frozen: bool = False, **ways: Any):
        release()
        sizes: dict[str, Any] = arrival.run or {}
        config = ParallelismConfig(**sizes) if sizes else None
        self.accelerator = Accelerator(cpu=True, parallelism_config=config, **ways)
        self.raw = load(models, arrival, dtype)
        for name, parameter in self.raw.named_parameters():
            parameter.requires_grad_(not frozen or ".0." not in name)
        trained = [parameter for parameter in self.raw.parameters() if parameter.requires_grad]
        self.model, self.optimizer = self.accelerator.prepare(self.raw, torch.optim.AdamW(trained, lr=0.01))

    def loss(self, tokens: Tensor, **more: Any) -> Tensor:
        loss: Tensor = self.model(input_ids=tokens, labels=tokens, use_cache=False, **more).loss
        return loss

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> dict[str, Tensor]:
        state = self.accelerator.unwrap_model(self.model).state_dict()
        return {name: whole(value) for name, value in state.items()}


def values_are_clipped(models: Path, arrival: Arrival, folder: Path) -> Any:
    loop = Loop(models, arrival, frozen=True)
    for tokens in TOKENS[:STEPS]:
        loop.accelerator.backward(loop.loss(tokens))
        loop.accelerator.clip_grad_value_(loop.model.parameters(), 0.001)
        loop.step()
    return loop.weights()


def losses_have_weights(models: Path, arrival: Arrival, folder: Path) -> Any:
    loop = Loop(models, arrival, gradient_accumulation_steps=2)
    for number, tokens in enumerate(TOKENS[: 2 * STEPS]):
        rows = tokens[: 1 + number % 2]
        with loop.accelerator.accumulate(loop.model):
            loop.accelerator.backward(loop.loss(rows, num_items_in_batch=1), weight=8 * len(rows))
            loop.step()
    return loop.weights()


def gradients_stay_for_a_while(models: Path, arrival: Arrival, folder: Path) -> Any:
    loop = Loop(models, arrival)
    for first, second in TOKENS.view(STEPS, 2, 2, 9):
        with loop.accelerator.no_sync(loop.model):
            loop.accelerator.backward(loop.loss(first))
        loop.accelerator.backward(loop.loss(second))
        loop.step()
    return loop.weights()


def two_models_train(models: Path, arrival: Arrival, folder: Path) -> Any:
    loop = Loop(models, arrival)
    raw = load(models, arrival)
    other, optimizer = loop.accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.1))
    for tokens in TOKENS[:STEPS]:
        for model, steps in ((loop.model, loop.optimizer), (other, optimizer)):
            loop.accelerator.backward(model(input_ids=tokens, labels=tokens, use_cache=False).loss)
            steps.step()
            steps.zero_grad()
    state = loop.accelerator.unwrap_model(other).state_dict()
    return [loop.weights(), {name: whole(value) for name, value in state.items()}]


def activations_are_computed_again(models: Path, arrival: Arrival, folder: Path) -> Any:
    divided: dict[str, Any] = (
        {"fsdp_plugin": FullyShardedDataParallelPlugin(activation_checkpointing=True)} if arrival.run else {}
    )
    loop = Loop(models, arrival, **divided)
    for tokens in TOKENS[:STEPS]:
        loop.accelerator.backward(loop.loss(tokens))
        loop.step()
    return loop.weights()


def metrics_see_each_sample_once(models: Path, arrival: Arrival, folder: Path) -> Any:
    loop = Loop(models, arrival)
    rows: Any = list(TOKENS.view(12, 9)[:11])
    loader, seen = loop.accelerator.prepare(DataLoader(rows, batch_size=4)), []
    loop.model.eval()
    with torch.no_grad():
        for tokens in loader:
            scores = loop.model(input_ids=tokens).logits.argmax(-1)
            seen.append(loop.accelerator.gather_for_metrics(scores))
        made = loop.model.generate(TOKENS[0], max_new_tokens=4, do_sample=False)
    return [torch.cat(seen), made]


def files_are_whole(models: Path, arrival: Arrival, folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    loop = Loop(models, arrival)
    loop.accelerator.backward(loop.loss(TOKENS[0]))
    loop.step()
    loop.accelerator.save_model(loop.model, folder / "model")
    loop.accelerator.save_state(str(folder / "state"), asynchronous=True)
    saved = loop.weights()
    weights = loop.accelerator.get_state_dict(loop.model)
    loop.accelerator.unwrap_model(loop.model).save_pretrained(folder / "pretrained", state_dict=weights)
    loop.accelerator.backward(loop.loss(TOKENS[1]))
    loop.step()
    loop.accelerator.wait_for_everyone()
    loop.accelerator.load_state(str(folder / "state"))
    assert all(torch.equal(value, saved[name]) for name, value in loop.weights().items())
    loop.accelerator.backward(loop.loss(TOKENS[1]))
    loop.step()
    loop.model.load_state_dict(saved)
    assert all(torch.equal(value, saved[name]) for name, value in loop.weights().items())
    again = AutoModelForCausalLM.from_pretrained(folder / "pretrained").state_dict()
    assert all(torch.equal(again[name], value) for name, value in saved.items())
    return [load_file(folder / "model" / "model.safetensors"), saved]


def blocks_are_compiled(models: Path, arrival: Arrival, folder: Path) -> Any:
    dynamo = TorchDynamoPlugin(backend="eager", use_regional_compilation=True)
    loop = Loop(models, arrival, dynamo_plugin=dynamo)
    for tokens in TOKENS[:STEPS]:
        loop.accelerator.backward(loop.loss(tokens))
        loop.step()
    return {name.replace("_orig_mod.", ""): value for name, value in loop.weights().items()}


FEATURES = [
    blocks_are_compiled,
    values_are_clipped,
    losses_have_weights,
    gradients_stay_for_a_while,
    two_models_train,
    activations_are_computed_again,
    metrics_see_each_sample_once,
    files_are_whole,
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def run_all(models: Path, arrival: Arrival, folder: Path) -> list[Any]:
    """The results of all features."""
    return [feature(models, arrival, folder / feature.__name__) for feature in FEATURES]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # by Dynamo
def test_a_feature_does_with_a_divided_model_what_it_does_with_a_whole_one(
    world: MakePool, models: Path, tmp_path: Path
) -> None:
    wanted = run_all(models, WHOLE, tmp_path / "one")
    for found in world(2).run(run_all, models, DIVIDED, tmp_path / "two", timeout_s=110):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def in_half(models: Path, arrival: Arrival) -> list[tuple[list[float], bool]]:
    """Losses in bf16 and fp16, and whether a step was skipped in which one rank alone had an overflow."""
    found = []
    for precision in ("bf16", "fp16"):
        loop, losses = Loop(models, arrival, dtype="float32", mixed_precision=precision), []
        for tokens in TOKENS:
            loss = loop.loss(tokens)
            losses.append(loss.item())
            loop.accelerator.backward(loss)
            loop.step()
        assert {value.dtype for value in loop.weights().values()} == {torch.float32}
        if precision == "fp16":
            loop.accelerator.backward(loop.loss(TOKENS[0]))
            if loop.accelerator.process_index == loop.accelerator.num_processes - 1:
                part = next(one.grad for one in loop.model.parameters() if one.grad is not None)
                local_part(part).fill_(float("inf"))
            loop.step()
        found.append((losses, loop.accelerator.optimizer_step_was_skipped))
    return found


def test_half_precision_trains_within_its_digits(world: MakePool, models: Path) -> None:
    """Layers, and whole experts that are spread over ranks with samples of their own, which here are the same."""
    for divided in (DIVIDED._replace(model="llama"), SPREAD):
        wanted = in_half(models, ALONE._replace(model=divided.model))
        for found in world(2).run(in_half, models, divided):
            for (losses, skipped), (others, skipped_too) in zip(found, wanted, strict=True):
                assert skipped == skipped_too
                torch.testing.assert_close(losses, others, rtol=0, atol=2e-2)
        assert wanted[1][1]


def words_of(make: Callable[..., object], *args: object) -> str:
    """The words of an error."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 # the test compares the words
        make(*args)
    return str(caught.value)


def refusals(models: Path) -> list[str]:
    """What is not done with a model that arrives divided, in words."""
    from peft import LoraConfig, get_peft_model

    loop = Loop(models, DIVIDED)
    found = [
        words_of(lambda: loop.accelerator.join_uneven_inputs([loop.model]).__enter__()),
        words_of(lambda: LocalSGD(loop.accelerator, loop.model, 2)),
    ]
    others: list[dict[str, Any]] = [{}, {"strategy": "ddp"}, {"parallelism_config": ParallelismConfig(dp_shard_size=2)}]
    for ways in others:
        release()
        found.append(words_of(Accelerator(cpu=True, **ways).prepare, load(models, DIVIDED)))
    for plan, adapters in (({"model.norm": "replicate"}, False), (None, True), (None, False)):
        release()
        config, dynamo = ParallelismConfig(tp_size=2, tp_plan=plan), None if plan or adapters else "eager"
        accelerator = Accelerator(cpu=True, parallelism_config=config, dynamo_backend=dynamo)
        model = load(models, DIVIDED)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])) if adapters else model
        found.append(words_of(accelerator.prepare, model))
    return found


def test_what_goes_with_no_divided_model_is_refused(world: MakePool, models: Path) -> None:
    first, second = world(2).run(refusals, models)
    words = [
        "each forward gathers weights from all ranks",
        "each rank holds a part of each parameter, and cannot train alone",
        *["strategy 'ddp' takes whole models only; tell the run of it by Accelerator(parallelism_config="] * 2,
        "tp_size=2 divides it over the ranks 0, 1, and the mesh of the run is dp_replicate 1, dp_shard 2, tp 1",
        "tp_plan is given, and MixtralForCausalLM arrives with its layers divided",
        "arrives divided, and has adapters (LoRA), which are not",
        "torch.compile of the whole model, and MixtralForCausalLM arrives divided: compile block by block",
    ]
    for found in (first, second):
        assert all(part in whole for part, whole in zip(words, found, strict=True)), found
