"""Small language models that Transformers divides while it loads them, trained, saved and resumed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accel import Accelerator, ParallelismConfig
from accel_state import release
from long_sequences.models import loss_in_its_dtype
from torch import Tensor, nn
from trained_runs import Trained
from whole_tensors import whole

VOCABULARY, ROWS, STEPS = 64, 8, 3


class Leg(NamedTuple):
    """The steps of a training that a job takes, the checkpoint that it goes on from, and the one that it leaves."""

    first: int = 0
    last: int = STEPS
    resumed: Path | None = None
    saved: Path | None = None


class Arrival(NamedTuple):
    """A model, by what sizes Transformers divides it, and those of the run; with no sizes, those of the model."""

    model: str
    loaded: dict[str, int]
    run: dict[str, int] | None
    every: int = 1
    router_loss: bool = False


ALONE = Arrival("", {}, {})
WHOLE = Leg()


def write_models(folder: Path) -> None:
    """Save a Llama with tied weights, a Qwen3 and a Mixtral with experts, by names, as Transformers saves models."""
    import transformers

    small: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
    small |= {"bos_token_id": None, "eos_token_id": None}
    few = small | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 8}
    configs = {
        "llama": transformers.LlamaConfig(**small, intermediate_size=24, attention_bias=True, tie_word_embeddings=True),
        "qwen3_moe": transformers.Qwen3MoeConfig(**few, intermediate_size=24),
        "mixtral": transformers.MixtralConfig(**small, intermediate_size=24, num_local_experts=4),
    }
    for name, config in configs.items():
        torch.manual_seed(3)
        made: Any = transformers.AutoModelForCausalLM
        made.from_config(config).double().save_pretrained(folder / name)


def load(folder: Path, arrival: Arrival, dtype: str = "float64") -> Any:
    """What `from_pretrained` gives, in training mode, with a loss in float64."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    sizes: dict[str, Any] = arrival.loaded
    ways: dict[str, Any] = {"distributed_config": DistributedConfig(**sizes)} if sizes else {}
    if arrival.model != "llama":
        ways["experts_implementation"] = "eager"  # the others have no float64
    model = AutoModelForCausalLM.from_pretrained(folder / arrival.model, dtype=dtype, **ways)
    model.loss_function = loss_in_its_dtype
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = partial(route, module)
    return model.train()


def route(router: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the routers of Transformers compute, which make float32 of all scores."""
    logits = nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), router.weight)
    scores, experts = torch.topk(logits.softmax(-1), router.top_k)
    return logits, scores / scores.sum(-1, keepdim=True), experts


def train(folder: Path, arrival: Arrival, leg: Leg = WHOLE) -> Trained:
    """The loop of a user; nothing in it knows the layout."""
    release()
    model: Any = load(folder, arrival) if arrival.run is None else None
    # the model first: it knows how processes are arranged
    sizes: dict[str, Any] = arrival.run or {}
    config = ParallelismConfig.of(model) if model is not None else ParallelismConfig(**sizes) if sizes else None
    accelerator = Accelerator(cpu=True, parallelism_config=config, gradient_accumulation_steps=arrival.every)
    model = model or load(folder, arrival)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    if leg.resumed is not None:
        accelerator.load_state(leg.resumed)
    mesh = accelerator.run.mesh
    random = torch.Generator().manual_seed(5)
    batches = torch.randint(0, VOCABULARY, (2 * STEPS * arrival.every, ROWS, 9), generator=random)
    losses, norms, window = [], [], 0.0
    for batch in batches[leg.first * arrival.every : leg.last * arrival.every]:
        with accelerator.accumulate(model):
            rows = batch.chunk(mesh.data_size)[mesh.data_rank(accelerator.process_index)]
            more = {"output_router_logits": True} if arrival.router_loss else {}
            loss = model(input_ids=rows, labels=rows, use_cache=False, **more).loss
            accelerator.backward(loss)
            window += accelerator.reduce(loss.detach(), "mean").item()
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                losses.append(window)
                window = 0.0
            optimizer.step()
            optimizer.zero_grad()
    if leg.saved is not None:
        accelerator.save_state(leg.saved)
    return Trained(losses, norms, weights_of(accelerator, model))


def weights_of(accelerator: Accelerator, model: Any) -> dict[str, Tensor]:
    """The whole weights; on the main process they are those that `get_state_dict` gives."""
    found = {name: whole(value) for name, value in accelerator.unwrap_model(model).state_dict().items()}
    gathered = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        assert all(torch.equal(gathered[name], value) for name, value in found.items())
    return found
