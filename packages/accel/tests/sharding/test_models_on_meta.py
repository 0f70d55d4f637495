"""A model that fits on no process: built on the meta device, sharded, and filled part by part from files."""

import resource
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import accel
import pytest
import torch
from accel import (
    Accelerator,
    CheckpointError,
    FullyShardedDataParallelPlugin,
    ParallelismConfig,
    load_checkpoint_in_model,
)
from accel_checkpoint import save_weights
from accel_testing import MakePool
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from whole_tensors import whole

WIDTH = 6
#: of the model that memory is measured with
SIDE, LAYERS = 512, 64


class Decoder(nn.Module):
    """Tied and frozen weights, a number, blocks, and a buffer that is not saved."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH, dtype=dtype)
        self.blocks = nn.ModuleList([Block(dtype) for _ in range(2)])
        self.frozen = nn.Linear(WIDTH, WIDTH, dtype=dtype).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))
        self.head = nn.Linear(WIDTH, 11, bias=False, dtype=dtype)
        self.head.weight = self.embedding.weight
        self.register_buffer("places", torch.arange(3, dtype=dtype).unsqueeze(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.frozen(self.embedding(tokens)) + self.get_buffer("places")
        for block in self.blocks:
            hidden = hidden + block(hidden) * self.scale
        outputs: Tensor = self.head(hidden)
        return outputs


class Block(nn.Module):
    """Two layers that a plan divides."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 8, dtype=dtype)
        self.down = nn.Linear(8, WIDTH, dtype=dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        outputs: Tensor = self.down(torch.tanh(self.up(hidden)))
        return outputs


def saved(folder: Path, dtype: torch.dtype = torch.float64, *, max_shard_size: int = 500) -> Path:
    torch.manual_seed(5)
    save_weights(Decoder(dtype).state_dict(), folder, max_shard_size=max_shard_size)
    return folder


def train(folder: Path, ways: dict[str, Any], optimizer_first: bool, empty: bool = True) -> list[Any]:
    """The losses of three steps, and the weights before and after them, if the model is empty before it is loaded."""
    accelerator = Accelerator(cpu=True, **ways)
    if empty:
        with accel.init_empty_weights():
            model = Decoder()
    else:
        model = Decoder()
    if optimizer_first:
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        load_checkpoint_in_model(model, folder, {"": accelerator.device}, strict=True)
    else:
        model = accelerator.prepare(model)
        load_checkpoint_in_model(model, folder, {"": accelerator.device}, strict=True)
        optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=0.01))
    loaded = {name: whole(value) for name, value in model.state_dict().items()}
    losses, tokens = [], torch.arange(24).view(8, 3) * 7 % 11
    mine = tokens.chunk(accelerator.run.mesh.data_size)[accelerator.run.mesh.data_rank(accelerator.process_index)]
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(mine).flatten(0, 1), (mine * 3 % 11).flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return [losses, loaded, {name: whole(value) for name, value in model.state_dict().items()}]


PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
LAYOUTS = {
    "fsdp2": (2, {"strategy": "fsdp2"}),
    "fsdp2 and tensor parallel": (
        4,
        {"parallelism_config": ParallelismConfig(dp_shard_size=2, tp_size=2, tp_plan=PLAN)},
    ),
    "sharded copies": (4, {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)}),
    "tensor parallel": (2, {"parallelism_config": ParallelismConfig(tp_size=2, tp_plan=PLAN)}),
    "one process": (1, {}),
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("optimizer_first", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_on_meta_is_filled_by_parts_and_trains_as_one_process(
    world: MakePool, tmp_path: Path, layout: str, optimizer_first: bool
) -> None:
    """Feature row S91."""
    folder = saved(tmp_path)
    wanted = train(folder, {}, True, empty=False)
    size, ways = LAYOUTS[layout]
    for found in world(size).run(train, folder, ways, optimizer_first):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=0)


def filled_in_other_dtypes(folder: Path) -> tuple[set[torch.dtype], Tensor]:
    accelerator = Accelerator(cpu=True, strategy="fsdp2", mixed_precision="bf16")
    with accel.init_empty_weights():
        model = Decoder(torch.bfloat16)
    model = accelerator.prepare(model)
    load_checkpoint_in_model(model, folder)
    return {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}, whole(model.head.weight)


def test_weights_of_a_file_become_float32_masters(world: MakePool, tmp_path: Path) -> None:
    """T10: files in half precision, masters in float32."""
    folder = saved(tmp_path, torch.bfloat16)
    torch.manual_seed(5)
    wanted = Decoder(torch.bfloat16).head.weight.detach().float()
    for dtypes, head in world(2).run(filled_in_other_dtypes, folder):
        assert dtypes == {torch.float32}
        assert torch.equal(head, wanted)


def refused(folders: list[Path], dtype: torch.dtype | None = None) -> tuple[str, bool]:
    """What stands against loading on this rank, and whether the model is as it was."""
    accelerator = Accelerator(cpu=True, strategy="fsdp2")
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model = accelerator.prepare(model)
    with pytest.raises((CheckpointError, ValueError)) as error:
        load_checkpoint_in_model(model, folders[accelerator.process_index], dtype=dtype, strict=True)
    return str(error.value), all(parameter.is_meta for parameter in model.parameters())


def layers(folder: Path, *, without: str = "", shape: tuple[int, ...] = (3,)) -> Path:
    state = {**nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).state_dict(), "1.bias": torch.ones(shape)}
    save_weights({name: tensor for name, tensor in state.items() if name != without}, folder)
    return folder


def test_weights_that_do_not_fit_are_refused_by_all_ranks_unchanged(world: MakePool, tmp_path: Path) -> None:
    whole_one, pool = layers(tmp_path / "whole"), world(2)
    missing, wrong = layers(tmp_path / "a", without="0.weight"), layers(tmp_path / "b", shape=(4,))
    short = layers(tmp_path / "c")
    content = (short / "model.safetensors").read_bytes()
    (short / "model.safetensors").write_bytes(content[:-1])
    words = {
        missing: "on the meta device and missing from the files: 0.weight; make the model on a real device",
        wrong: "another shape: 1.bias: [4] in the file, [3] in the model",
        short: f"its header tells of {len(content)} bytes, it has {len(content) - 1}",
        tmp_path / "none": "no such file or folder",
    }
    for folder, expected in words.items():
        for told, unchanged in pool.run(refused, [folder, folder]):
            assert expected in told
            assert "rank" not in told.replace(str(folder), "")
            assert unchanged
        for told, unchanged in pool.run(refused, [whole_one, folder]):
            assert told.startswith("rank 1: ")
            assert expected in told
            assert unchanged
    for told, _ in pool.run(refused, [whole_one, whole_one], torch.float16):
        assert told.startswith("dtype=torch.float16 for a sharded model: convert the model before it is sharded")


def from_rank_zero(mesh: ParallelismConfig | None, precision: str) -> list[Any]:
    """Only rank 0 builds a model with weights: the weights of all after prepare, their dtypes, and a step's loss."""
    plugin = FullyShardedDataParallelPlugin(cpu_ram_efficient_loading=True)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, parallelism_config=mesh, mixed_precision=precision)
    torch.manual_seed(5)
    with nullcontext() if accelerator.is_main_process else torch.device("meta"):
        model = Decoder()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loaded = {name: whole(value) for name, value in model.state_dict().items()}
    tokens = torch.arange(6).view(2, 3)
    accelerator.backward(model(tokens).square().mean())
    optimizer.step()
    return [loaded, model.get_buffer("places"), model(tokens).detach()]


@pytest.mark.parametrize(("size", "mesh"), [(2, None), (4, ParallelismConfig(dp_replicate_size=2, dp_shard_size=2))])
def test_weights_that_only_rank_zero_has_reach_the_parts_of_all(
    world: MakePool, size: int, mesh: ParallelismConfig | None
) -> None:
    torch.manual_seed(5)
    model, tokens = Decoder(), torch.arange(6).view(2, 3)
    wanted = [{name: whole(value) for name, value in model.state_dict().items()}, model.get_buffer("places")]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens).square().mean().backward()
    optimizer.step()
    for found in world(size).run(from_rank_zero, mesh, "no"):
        torch.testing.assert_close(found[:2], wanted, rtol=0, atol=0)
        torch.testing.assert_close(found[2], model(tokens).detach(), rtol=1e-9, atol=1e-9)


def half_empty_on_rank_zero() -> str:
    plugin = FullyShardedDataParallelPlugin(cpu_ram_efficient_loading=True)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[accelerator.process_index].to("meta")
    with pytest.raises(ValueError, match="rank 0") as error:
        accelerator.prepare(model)
    return str(error.value)


def test_weights_of_which_rank_zero_has_only_some_are_refused(world: MakePool) -> None:
    for told in world(2).run(half_empty_on_rank_zero):
        assert "rank 0 has 2 of 4 parameters on the meta device: it has to have numbers for all" in told


def loaded_under_a_limit(folder: Path, allowed_bytes: int) -> float:
    """The sum of the own part of the weights, read while the process may map little more than the part itself."""
    accelerator = Accelerator(cpu=True, strategy="fsdp2")
    with accel.init_empty_weights():
        model = nn.Sequential(*[nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)])
    model = accelerator.prepare(model)
    accelerator.wait_for_everyone()
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + allowed_bytes, hard))
    try:
        load_checkpoint_in_model(model, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    parts = [parameter.to_local() for parameter in model.parameters() if isinstance(parameter, DTensor)]
    return sum(part.sum().item() for part in parts)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to tell the size of a process")
def test_loading_takes_the_own_part_and_a_block_and_no_more(world: MakePool, tmp_path: Path) -> None:
    """To map the file would take twice the part."""
    block = SIDE * SIDE * 4
    state = {f"{number}.weight": torch.full((SIDE, SIDE), float(number)) for number in range(LAYERS)}
    save_weights(state, tmp_path)
    expected = sum(range(LAYERS)) * SIDE * SIDE / 2
    allowed = LAYERS * block // 2 + block + 2**24
    assert allowed < LAYERS * block
    assert world(2).run(loaded_under_a_limit, tmp_path, allowed) == [expected, expected]


def by_ddp() -> str:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="on the meta device") as error:
        Accelerator(cpu=True, strategy="ddp").prepare(model)
    return str(error.value)


def test_a_model_on_meta_that_each_process_would_hold_whole_is_refused(world: MakePool) -> None:
    for told in world(2).run(by_ddp):
        assert told == (
            "Linear has 2 parameters on the meta device (weight, bias), and each process is to hold all of it: load its"
            " weights before prepare, with load_checkpoint_in_model(model, folder, {'': accelerator.device}), or"
            " shard it"
        )


def on_meta_on_one_rank() -> str:
    accelerator = Accelerator(cpu=True, strategy="fsdp2")
    with torch.device("cpu" if accelerator.is_main_process else "meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="on the meta device") as error:
        accelerator.prepare(model)
    return str(error.value)


def test_a_model_that_is_on_meta_on_some_ranks_is_refused(world: MakePool) -> None:
    for told in world(2).run(on_meta_on_one_rank):
        assert "rank 1 has weight: float32 (2, 2), trained, on the meta device" in told


def test_a_plain_torch_file_is_read_by_parts(world: MakePool, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = Decoder()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    for _, loaded, _ in world(2).run(train, tmp_path, {"strategy": "fsdp2"}, True):
        torch.testing.assert_close(loaded, dict(model.state_dict()), rtol=0, atol=0)


def llama(folder: Path) -> tuple[list[str], Tensor]:
    from transformers import LlamaForCausalLM

    accelerator = Accelerator(cpu=True, strategy="fsdp2")
    with torch.device("meta"):
        model = LlamaForCausalLM(small_llama())
    model = accelerator.prepare(model)
    load_checkpoint_in_model(model, folder, strict=True)
    return [name for name, buffer in model.named_buffers() if buffer.is_meta], model(torch.arange(5)[None]).logits


def small_llama() -> Any:
    from transformers import LlamaConfig

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return LlamaConfig(vocab_size=11, bos_token_id=0, eos_token_id=1, **sizes)


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_buffers_that_no_file_has_are_computed_by_the_model(world: MakePool, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(small_llama())
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    wanted = model(torch.arange(5)[None]).logits.detach()
    for left, logits in world(2).run(llama, tmp_path):
        assert left == []
        torch.testing.assert_close(logits, wanted)


def test_models_built_without_memory_keep_ties_kinds_and_buffers() -> None:
    with accel.init_empty_weights():
        model = Decoder()
        outside = torch.ones(1)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert model.head.weight is model.embedding.weight
    assert not model.frozen.weight.requires_grad
    assert model.get_buffer("places").tolist() == [[0.0], [1.0], [2.0]]
    assert outside.device.type == nn.Linear(1, 1).weight.device.type == "cpu"
    with accel.init_empty_weights(include_buffers=True):
        assert Decoder().get_buffer("places").is_meta
