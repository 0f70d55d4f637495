"""What test_spmd_features.py runs, by one XLA device and by several: each feature trains, and says what came of it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accel
import torch
from accel import Accelerator, ActivationCheckpointingKwargs, TorchDynamoPlugin
from accel_state import CannotRun, release
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

STRATEGY, FOLDER = sys.argv[1], Path(sys.argv[2])
ROWS = torch.linspace(-1, 1, 160).view(20, 8)

Told = dict[str, Any]
Loss = Callable[[Any, Tensor], Tensor]


class Block(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        """The input, and what the layer adds."""
        return hidden + torch.tanh(self.inner(hidden))


class Model(nn.Module):
    """Blocks of one class between two other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.entrance, self.exit = nn.Linear(8, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, inputs: Tensor) -> Tensor:
        """What the layers make of the inputs, one after the other."""
        hidden = self.entrance(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        outputs: Tensor = self.exit(hidden)
        return outputs


def make(*, frozen: bool = False) -> Model:
    """A model with the same weights in each call."""
    torch.manual_seed(0)
    model = Model()
    model.entrance.requires_grad_(not frozen)
    return model


def mean_square(model: Any, inputs: Tensor) -> Tensor:
    loss: Tensor = model(inputs).float().square().mean()
    return loss


def train(
    accelerator: Accelerator, model: nn.Module, loss_of: Loss = mean_square, *, weight: bool = False, clip: float = 0.0
) -> tuple[Any, Any, Told]:
    """Five steps."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(trained, lr=0.05))
    loader: Any = accelerator.prepare(DataLoader(TensorDataset(ROWS), batch_size=4))
    losses = []
    for number, (inputs,) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = loss_of(model, inputs)
            accelerator.backward(loss * (number + 1) if weight else loss, weight=number + 1 if weight else None)
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_value_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return model, optimizer, {"losses": losses}


def clip_grad_value() -> Told:
    return train(Accelerator(strategy=STRATEGY), make(), clip=1e-3)[2]


def weighted_losses() -> Told:
    return train(Accelerator(strategy=STRATEGY, gradient_accumulation_steps=2), make(), weight=True)[2]


def bf16() -> Told:
    model, _, told = train(Accelerator(strategy=STRATEGY, mixed_precision="bf16"), make())
    return told | {"masters": sorted({str(parameter.dtype) for parameter in model.parameters()})}


def fp16() -> Told:
    try:
        return train(Accelerator(strategy=STRATEGY, mixed_precision="fp16"), make())[2]
    except CannotRun as error:
        return {"refused": str(error).partition(": ")[2]}


def frozen_weights() -> Told:
    model, _, told = train(Accelerator(strategy=STRATEGY), make(frozen=True))
    return told | {"frozen": model.entrance.weight.detach().cpu().tolist()}


def activation_checkpointing(backend: str) -> Told:
    plugin = TorchDynamoPlugin(backend=backend, use_regional_compilation=True)
    handlers: list[Any] = [ActivationCheckpointingKwargs()]
    try:
        return train(Accelerator(strategy=STRATEGY, dynamo_plugin=plugin, kwargs_handlers=handlers), make())[2]
    except ValueError as error:
        return {"refused": str(error)}


def compiled(regional: bool) -> Told:
    plugin = TorchDynamoPlugin(backend="openxla", use_regional_compilation=regional)
    try:
        return train(Accelerator(strategy=STRATEGY, dynamo_plugin=plugin), make())[2]
    except ValueError as error:
        return {"refused": str(error)}


def two_models() -> Told:
    accelerator = Accelerator(strategy=STRATEGY)
    first, second = make(), make(frozen=True)
    one, two = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.AdamW(second.parameters(), lr=0.1)
    first, second, one, two = accelerator.prepare(first, second, one, two)
    losses = []
    for _ in range(3):
        inputs = ROWS[:8].to(accelerator.device)
        accelerator.backward((first(inputs) - second(inputs).detach()).square().mean())
        one.step()
        one.zero_grad()
        loss = (second(inputs) - first(inputs).detach() - 1).square().mean()
        accelerator.backward(loss)
        two.step()
        two.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}


def gather_for_metrics() -> Told:
    accelerator = Accelerator(strategy=STRATEGY)
    loader: Any = accelerator.prepare(DataLoader(TensorDataset(ROWS), batch_size=8))
    model = accelerator.prepare(make())
    with torch.no_grad():
        outputs = [accelerator.gather_for_metrics(model(inputs)).cpu() for (inputs,) in loader]
    return {"outputs": torch.cat(outputs).tolist()}


def save_behind() -> Told:
    accelerator = Accelerator(strategy=STRATEGY)
    model, optimizer, told = train(accelerator, make())
    inputs = ROWS[:4].to(accelerator.device)

    def step() -> float:
        loss = mean_square(model, inputs)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    accelerator.save_state(FOLDER / f"behind-{STRATEGY}", asynchronous=True)
    after = [step(), step()]
    accelerator.wait_for_checkpoint()
    accelerator.load_state(FOLDER / f"behind-{STRATEGY}")
    return told | {"after": after, "again": [step(), step()]}


def other_checkpoint() -> Told:
    """The one device saves, all others load."""
    accelerator = Accelerator(strategy=STRATEGY)
    model, optimizer, _ = train(accelerator, make())
    if STRATEGY == "single":
        accelerator.save_state(FOLDER / "other")
    else:
        inputs = ROWS[:4].to(accelerator.device)
        accelerator.backward(mean_square(model, inputs))
        optimizer.step()
        optimizer.zero_grad()
        accelerator.load_state(FOLDER / "other")
    state: Any = {name: value.cpu().tolist() for name, value in model.state_dict().items()}
    moments = [entry["exp_avg"].cpu().tolist() for entry in optimizer.state_dict()["state"].values()]
    return {"state": state, "moments": moments}


def save_model() -> Told:
    accelerator = Accelerator(strategy=STRATEGY)
    model, _, _ = train(accelerator, make())
    accelerator.save_model(model, FOLDER / f"model-{STRATEGY}")
    again = make()
    accel.load_checkpoint_in_model(again, FOLDER / f"model-{STRATEGY}")
    whole = accelerator.get_state_dict(model)
    return {
        "file": {name: value.tolist() for name, value in again.state_dict().items()},
        "state": {name: value.cpu().tolist() for name, value in whole.items()},
    }


def on_meta() -> Told:
    accelerator = Accelerator(strategy=STRATEGY)
    accelerator.save_model(make(), FOLDER / f"meta-{STRATEGY}")
    with accel.init_empty_weights():
        model = make()
    accel.load_checkpoint_in_model(model, FOLDER / f"meta-{STRATEGY}", {"": accelerator.device})
    return train(accelerator, model)[2]


def model_on_meta() -> Told:
    """One device fills a model after prepare; several take it filled."""
    accelerator = Accelerator(strategy=STRATEGY)
    with accel.init_empty_weights():
        model = make()
    try:
        accelerator.prepare(model)
    except ValueError as error:
        return {"refused": str(error)}
    return {}


def language_model(adapters: bool) -> Told:
    import transformers

    small: Any = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16}
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small))
    if adapters:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, lora_dropout=0.0, target_modules="all-linear"))

    def loss_of(ready: Any, inputs: Tensor) -> Tensor:
        ids = (inputs.abs() * 31).long() % 32
        loss: Tensor = ready(input_ids=ids, labels=ids).loss
        return loss

    return train(Accelerator(strategy=STRATEGY), model, loss_of)[2]


FEATURES: dict[str, Callable[[], Told]] = {
    "clip_grad_value_": clip_grad_value,
    "weighted losses": weighted_losses,
    "bf16": bf16,
    "fp16": fp16,
    "frozen weights": frozen_weights,
    "activation checkpointing": lambda: activation_checkpointing("no"),
    "torch.compile": lambda: compiled(False),
    "torch.compile of blocks": lambda: compiled(True),
    "torch.compile and activation checkpointing": lambda: activation_checkpointing("openxla"),
    "two models": two_models,
    "gather_for_metrics": gather_for_metrics,
    "save_state(asynchronous=True)": save_behind,
    "a checkpoint of one device": other_checkpoint,
    "save_model": save_model,
    "a model on meta, filled before prepare": on_meta,
    "a model on meta": model_on_meta,
    "a model of Transformers": lambda: language_model(False),
    "adapters": lambda: language_model(True),
}

for name, feature in FEATURES.items():
    print("told:" + json.dumps([name, feature()]), flush=True)
    release()
