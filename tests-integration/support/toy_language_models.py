"""Small language models of Transformers with random weights, trained on text of the standard library."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from accel import (
    Accelerator,
    ActivationCheckpointingKwargs,
    FullyShardedDataParallelPlugin,
    ParallelismConfig,
    TorchDynamoPlugin,
)
from accel_state import release
from torch import Tensor, nn
from torch.utils.data import DataLoader
from trained_runs import Trained
from whole_tensors import whole

VOCABULARY, LENGTH, ROWS = 128, 12, 8

#: how each layout is asked for
LAYOUTS: dict[str, dict[str, Any]] = {
    "one process": {},
    "ddp": {"strategy": "ddp"},
    "fsdp2": {"strategy": "fsdp2"},
    "hsdp": {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)},
    "tp": {"parallelism_config": ParallelismConfig(tp_size=2)},
    "fsdp2 and tp": {"parallelism_config": ParallelismConfig(dp_shard_size=2, tp_size=2)},
}


class Case(NamedTuple):
    """What is trained, and how."""

    model: str = "gpt2"
    every: int = 1
    clip: bool = True
    weighted: bool = False
    frozen: bool = False
    adapters: bool = False
    recompute: bool = False
    backend: str = "no"
    regional: bool = True
    precision: str = "no"
    dtype: str = "float64"
    dropout: float = 0.0
    steps: int = 20


def make_model(name: str, dropout: float = 0.0) -> Any:
    """A model of two layers; of GPT-2 and BERT the head and the embedding are one tensor."""
    import transformers

    small: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
    if name == "gpt2":
        drops: dict[str, Any] = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_positions=32, n_embd=16, n_layer=2, n_head=2, **drops, **small)
        )
    small |= {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    if name == "bert":
        drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        return transformers.BertForMaskedLM(transformers.BertConfig(**drops, **small))
    small["max_position_embeddings"] = 32
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **small))
    if name == "qwen3":  # its norms inside of the heads see only heads of their rank; head and embedding are one
        small |= {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True}
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**small))
    small["num_key_value_heads"] = 1
    small |= {"experts_implementation": "eager"}  # the others have no float64
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(num_local_experts=4, **small))


def texts(count: int) -> list[dict[str, Any]]:
    """Rows of text as bytes; some end early, and are filled up with what no loss counts."""
    source = [byte % VOCABULARY for byte in inspect.getsource(argparse).encode()]
    rows = []
    for row in range(count):
        tokens = source[row * LENGTH : (row + 1) * LENGTH]
        real = LENGTH - row % 5
        rows.append({"input_ids": tokens, "labels": tokens[:real] + [-100] * (LENGTH - real)})
    return rows


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}


def built(case: Case) -> nn.Module:
    """The model of a case, in its dtype, with what is not trained frozen."""
    model: Any = make_model(case.model, case.dropout)
    if case.frozen:
        for parameter in next(module for module in model.modules() if isinstance(module, nn.ModuleList))[
            0
        ].parameters():
            parameter.requires_grad_(False)
    if case.adapters:
        from peft import LoraConfig, get_peft_model

        # GPT-2 has layers whose weights are transposed
        how = LoraConfig(r=2, lora_dropout=0.0, target_modules="all-linear", fan_in_fan_out=case.model == "gpt2")
        model = get_peft_model(model, how)
    made: nn.Module = model.to(getattr(torch, case.dtype)).train()
    return made


def train_all(cases: Sequence[Case], layout: str) -> list[Trained]:
    """Each case in turn, in the same processes."""
    trained = []
    for case in cases:
        release()
        torch.compiler.reset()
        trained.append(train(case, layout))
    return trained


def train(case: Case, layout: str) -> Trained:
    """The loop of a user; nothing in it knows the layout."""
    ways, by_handler = dict(LAYOUTS[layout]), case.recompute
    if case.recompute and layout not in ("one process", "ddp"):
        ways["fsdp_plugin"], by_handler = FullyShardedDataParallelPlugin(activation_checkpointing=True), False
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=case.precision,
        gradient_accumulation_steps=case.every,
        kwargs_handlers=[ActivationCheckpointingKwargs()] if by_handler else [],
        dynamo_plugin=TorchDynamoPlugin(backend=case.backend, use_regional_compilation=case.regional),
        **ways,
    )
    torch.manual_seed(accelerator.process_index)  # the weights of rank 0 count
    model: Any = built(case)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.003)
    rows = texts(case.steps * case.every * ROWS)
    loader: Any = DataLoader(rows, batch_size=ROWS // accelerator.run.mesh.data_size, collate_fn=collate)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    is_compiled = any(module._compiled_call_impl is not None for module in model.modules())
    assert is_compiled == (case.backend != "no")
    losses, norms, window = [], [], torch.zeros(())
    for batch in loader:
        with accelerator.accumulate(model):
            logits = model(input_ids=batch["input_ids"]).logits.flatten(0, 1)
            labels = batch["labels"] if case.weighted else batch["input_ids"]
            loss = nn.functional.cross_entropy(
                logits, labels.flatten(), ignore_index=-100, reduction="sum" if case.weighted else "mean"
            )
            accelerator.backward(loss, weight=(labels != -100).sum() if case.weighted else None)
            window = window + loss.detach()
            if accelerator.sync_gradients:
                if case.clip:
                    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
                    norms.append(accelerator.clip_grad_norm_(trained, 0.5).item())
                losses.append(accelerator.reduce(window, "sum" if case.weighted else "mean").item())
                window = torch.zeros(())
            optimizer.step()
            optimizer.zero_grad()
    held = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in held} == {getattr(torch, case.dtype)}, "master weights"
    state = accelerator.unwrap_model(model).state_dict()
    return Trained(losses, norms, {name: whole(value) for name, value in state.items()})
