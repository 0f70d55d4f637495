"""Small language models of Transformers that compute their loss, trained on sequences that are divided or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from accel import Accelerator, ActivationCheckpointingKwargs, FullyShardedDataParallelPlugin, ParallelismConfig
from accel_state import release
from torch import Tensor, nn
from torch.utils.data import DataLoader
from trained_runs import Trained
from whole_tensors import whole

VOCABULARY, ROWS, STEPS = 64, 4, 5

#: how each layout is asked for
LAYOUTS: dict[str, dict[str, Any]] = {
    "one process": {},
    "sp": {"sp_size": 2},
    "cp": {"cp_size": 2},
    "sp 4": {"sp_size": 4},
    "cp 4": {"cp_size": 4},
    "sp and cp": {"sp_size": 2, "cp_size": 2},
    "sp and ddp": {"sp_size": 2, "dp_replicate_size": 2},
    "cp and ddp": {"cp_size": 2, "dp_replicate_size": 2},
    "sp and fsdp2": {"sp_size": 2, "dp_shard_size": 2},
    "cp and fsdp2": {"cp_size": 2, "dp_shard_size": 2},
    "sp, cp and ddp": {"sp_size": 2, "cp_size": 2, "dp_replicate_size": 2},
    "sp, cp and fsdp2": {"sp_size": 2, "cp_size": 2, "dp_shard_size": 2},
    "sp and hsdp": {"sp_size": 2, "dp_replicate_size": 2, "dp_shard_size": 2},
}


class LongCase(NamedTuple):
    """What is trained, and how."""

    model: str = "llama"
    length: int = 24
    every: int = 1
    weighted: bool = False
    padded: bool = False
    packed: bool = False
    adapters: bool = False
    recompute: bool = False
    fsdp: bool = False
    precision: str = "no"
    dtype: str = "float64"
    attention: str = "sdpa"


def make_model(case: LongCase) -> Any:
    """A model of two layers with four heads, of key heads two, and one in gpt-oss."""
    import transformers

    small: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
    small["attn_implementation"] = "eager" if case.model == "gpt_oss" else case.attention
    if case.model == "gpt2":
        drops: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(n_positions=case.length, n_embd=16, n_layer=2, n_head=4, **drops, **small)
        return transformers.GPT2LMHeadModel(config)
    small |= {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    small |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
    if case.model == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**small))
    if case.model == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=8, tie_word_embeddings=True, **small))
    if case.model == "mistral":
        return transformers.MistralForCausalLM(transformers.MistralConfig(sliding_window=5, **small))
    small |= {"num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
    small |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
    small |= {"experts_implementation": "eager"}  # the others have no float64
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**small))


def loss_in_its_dtype(
    logits: Tensor,
    labels: Tensor | None = None,
    vocab_size: int = VOCABULARY,
    num_items_in_batch: Tensor | int | None = None,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """What transformers computes, which makes float32 of all logits."""
    if shift_labels is None:
        assert labels is not None
        shift_labels = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
    how = "mean" if num_items_in_batch is None else "sum"
    loss = nn.functional.cross_entropy(logits.reshape(-1, vocab_size), shift_labels.reshape(-1), reduction=how)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def rows_of(case: LongCase) -> list[dict[str, Tensor]]:
    """Rows with labels for some tokens, unlike in number; some end early, or hold several documents."""
    random = torch.Generator().manual_seed(5)
    rows = []
    for row in range(STEPS * case.every * ROWS):
        tokens = torch.randint(0, VOCABULARY, (case.length,), generator=random)
        kept = torch.rand(case.length, generator=random) < 0.2 + 0.6 * (torch.arange(case.length) < case.length // 3)
        made = {"input_ids": tokens, "labels": torch.where(kept, tokens, -100)}
        if case.padded:
            real = torch.arange(case.length) < case.length - row % 4 * 3
            made["attention_mask"] = real.long()
            made["labels"] = torch.where(real, made["labels"], -100)
        if case.packed:
            first = 3 + row % 7
            made["position_ids"] = torch.cat([torch.arange(first), torch.arange(case.length - first)])
        rows.append(made)
    return rows


def train_all(cases: Sequence[LongCase], layout: str) -> list[Trained]:
    """Each case in turn, in the same processes."""
    trained = []
    for case in cases:
        release()
        trained.append(train(case, layout))
    return trained


def train(case: LongCase, layout: str) -> Trained:
    """The loop of a user; nothing in it knows the layout."""
    sizes = LAYOUTS[layout]
    shards = case.fsdp or "dp_shard_size" in sizes
    recompute = [ActivationCheckpointingKwargs()] if case.recompute else []
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=case.precision,
        gradient_accumulation_steps=case.every,
        kwargs_handlers=recompute,
        fsdp_plugin=FullyShardedDataParallelPlugin() if shards else None,
        parallelism_config=ParallelismConfig(**sizes) if sizes else None,
    )
    torch.manual_seed(accelerator.process_index)  # the weights of rank 0 count
    model: Any = make_model(case)
    model.loss_function = loss_in_its_dtype
    if case.adapters:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.0, target_modules="all-linear"))
    model = model.to(getattr(torch, case.dtype)).train()
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.01)
    loader: Any = DataLoader(rows_of(case), batch_size=ROWS // accelerator.run.mesh.data_size)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, norms, gradients, window = [], [], dict[str, Tensor](), torch.zeros(())
    for batch in loader:
        with accelerator.accumulate(model):
            count = (batch["labels"][:, 1:] != -100).sum()
            # of packed documents Transformers knows without a cache only
            batch |= {"num_items_in_batch": 1} if case.weighted else {}
            loss = model(**batch, use_cache=False).loss
            accelerator.backward(loss, weight=count if case.weighted else None)
            window = window + loss.detach()
            if accelerator.sync_gradients:
                held = [parameter for parameter in model.parameters() if parameter.requires_grad]
                norms.append(accelerator.clip_grad_norm_(held, 0.5).item())
                losses.append(accelerator.reduce(window, "sum" if case.weighted else "mean").item())
                for name, parameter in accelerator.unwrap_model(model).named_parameters():
                    if parameter.grad is not None:
                        gradients[f"gradient of {name} in step {len(losses)}"] = whole(parameter.grad).clone()
                window = torch.zeros(())
            optimizer.step()
            optimizer.zero_grad()
    state = accelerator.unwrap_model(model).state_dict()
    return Trained(losses, norms, gradients | {name: whole(value) for name, value in state.items()})
