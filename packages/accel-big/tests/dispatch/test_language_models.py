"""Language models of Transformers say the same, wherever their weights are."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_big import load_checkpoint_and_dispatch
from accel_testing import stretched

transformers = pytest.importorskip("transformers", exc_type=ImportError)
IDS = torch.arange(7)[None]
KINDS = ("gpt2", "llama")


def config(kind: str, width: int, layers: int, words: int) -> Any:
    ends = {"vocab_size": words, "bos_token_id": 0, "eos_token_id": 1}
    if kind == "gpt2":
        return transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=4, **ends)
    return transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        tie_word_embeddings=False,
        **ends,
    )


def build(settings: Any) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(settings).eval()


def check(kind: str, width: int, layers: int, words: int, folder: Path, allowed: str, least: int = 0) -> None:
    settings = config(kind, width, layers, words)
    whole = build(settings)
    assert sum(parameter.nbytes for parameter in whole.parameters()) >= least
    assert (whole.lm_head.weight is whole.get_input_embeddings().weight) == (kind == "gpt2"), "one of both has ties"
    whole.save_pretrained(folder, max_shard_size="8MB")
    head = "transformer" if kind == "gpt2" else "model"
    memory: dict[int | str, int | str] = {"cpu": allowed}
    maps: list[Any] = [{"": "cpu"}, {"": "disk"}, "auto"]
    if kind == "llama":
        block = {f"model.layers.{at}": "cpu" if at % 2 else "disk" for at in range(layers)}
        rest = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
        maps.append(block | dict.fromkeys(rest, "cpu"))
    else:
        block = {f"transformer.h.{at}": "cpu" if at % 2 else "disk" for at in range(layers)}
        rest = (f"{head}.wte", f"{head}.wpe", f"{head}.ln_f", "lm_head")
        maps.append(block | dict.fromkeys(rest, "disk"))
    with torch.inference_mode():
        logits = whole(IDS).logits
        said = whole.generate(IDS, max_new_tokens=6, do_sample=False)
    for device_map in maps:
        with torch.device("meta"):
            model: Any = transformers.AutoModelForCausalLM.from_config(settings).eval()
        model.tie_weights()
        model = load_checkpoint_and_dispatch(model, folder, device_map, max_memory=memory)
        if device_map == "auto":
            assert {"cpu", "disk"} == set(model.hf_device_map.values())
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert torch.equal(model(IDS).logits, logits)
        assert torch.equal(model.generate(IDS, max_new_tokens=6, do_sample=False), said)


@pytest.mark.parametrize("kind", KINDS)
def test_they_say_what_the_whole_model_says(kind: str, tmp_path: Path) -> None:
    """S144: logits bit for bit, and tokens with a cache; everything on cpu or disk, by memory, mixed, tied."""
    check(kind, 128, 6, 4000, tmp_path, "5MB" if kind == "gpt2" else "6MB")


@pytest.mark.soak(only=True)
@pytest.mark.parametrize("kind", KINDS)
def test_large_ones_say_what_the_whole_model_says(kind: str, tmp_path: Path) -> None:
    """S144: of at least 400 MB."""
    check(kind, 1024, 8, 16000, tmp_path, "300MB", least=400_000_000)


LIMITED = """
import resource, sys, torch
from pathlib import Path
from torch import nn
import accel_big
from safetensors.torch import load_file

def make():
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(24)))

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.ones(64, 64) @ torch.ones(64, 64)
with torch.device("meta"):
    model = make()
accel_big.load_checkpoint_and_dispatch
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
allowed = taken + 24 * 2048 * 2048 * 4 * 4 // 10
resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
model = accel_big.load_checkpoint_and_dispatch(model, folder, "auto", max_memory={"cpu": "64MB"})
assert len(set(model.hf_device_map.values())) == 2, model.hf_device_map
with torch.no_grad():
    for _ in range(3):
        print(model(torch.ones(1, 2048)).sum().item())
del model
try:
    make().load_state_dict(load_file(folder / "model.safetensors"))
except (MemoryError, RuntimeError, OSError) as error:
    print("naive:", type(error).__name__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_a_limit_that_ends_the_naive_load_does_not_end_ours(tmp_path: Path) -> None:
    """S143: with two fifths of the model's 400 MB."""
    header: dict[str, Any] = {}
    size = 2048 * 2048 * 4
    for at in range(24):
        header[f"{at}.weight"] = {"dtype": "F32", "shape": [2048, 2048], "data_offsets": [at * size, (at + 1) * size]}
    text = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 24 * size)  # zeros that take no space
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=stretched(100),
        check=False,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    assert done.returncode == 0, done.stderr
    *ours, naive = done.stdout.splitlines()
    assert ours == ["0.0"] * 3
    assert naive.startswith("naive: "), done.stdout
