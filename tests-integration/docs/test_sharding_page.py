"""What docs/guides/sharding.md says of strategies is what tests hold, and its picture is that of the arithmetic."""

import re
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import memory_picture
import pytest
import strategy_table
import torch
from accel import Accelerator, ParallelismConfig
from accel_amp import local_part
from accel_state import release
from accel_testing import MakePool
from torch import nn

BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def processes_of(block: str) -> int:
    """The product of the sizes that a block names; without sizes it is for two processes."""
    sizes = dict(re.findall(r"(tp|shard|replicate)_size=(\d)", block))
    return prod(map(int, sizes.values())) if sizes else 2


def run_blocks(processes: int) -> int:
    """Runs the first block, which others go on from, and those for so many processes, each with a run of its own."""
    names: dict[str, object] = {}
    first, *others = BLOCK.findall(strategy_table.PAGE.read_text())
    blocks = [first, *(block for block in others if processes_of(block) == processes)]
    for block in blocks:
        exec(compile(block, str(strategy_table.PAGE), "exec"), names)
        release()
    return len(blocks)


@pytest.mark.skipif(not find_spec("transformers"), reason="a block uses Transformers")
@pytest.mark.parametrize(("processes", "blocks"), [(2, 6), (4, 2)])
def test_every_block_of_the_page_runs(
    world: MakePool, processes: int, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCEL_USE_CPU", "1")
    assert world(processes).run(run_blocks, processes) == [blocks] * processes


def test_each_cell_of_the_table_has_its_test() -> None:
    assert strategy_table.problems() == []


def test_the_table_is_that_of_the_tests() -> None:
    found = strategy_table.PLACE.search(strategy_table.PAGE.read_text())
    assert found is not None
    assert found[0] == strategy_table.table(), "python tests-integration/tools/strategy_table.py writes it anew"


def test_a_cell_without_its_test_is_told() -> None:
    cells = [
        strategy_table.yes("accel/fsdp2/nothing_of_the_sort"),
        strategy_table.yes("accel/no_such_file/nothing"),
        strategy_table.refused("together/layout_features/no_sync_changes_no_gradient", "un" + "said words"),
    ]
    assert [len(cell.problems()) for cell in cells] == [1, 1, 1]


def held(ways: dict[str, Any]) -> list[float]:
    """Bytes of parameters, gradients and moments that this rank holds for each number of the model."""
    accelerator = Accelerator(cpu=True, **ways)
    given = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    numbers = sum(parameter.numel() for parameter in given.parameters())
    model, optimizer = accelerator.prepare(given, torch.optim.AdamW(given.parameters()))
    accelerator.backward(model(torch.ones(2, 64)).sum())
    optimizer.step()
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    sizes = []
    for tensors in (parameters, gradients, moments):
        storages = [local_part(tensor).untyped_storage() for tensor in tensors]
        sizes.append(sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()) / numbers)
    return sizes


PLAN = {"0": "colwise", "1": "rowwise", "2": "colwise", "3": "rowwise"}
MEASURED = {
    "ddp": {"strategy": "ddp"},
    "fsdp2": {"strategy": "fsdp2"},
    "HSDP, 2 x 2": {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)},
    "tp 2": {"parallelism_config": ParallelismConfig(dp_replicate_size=2, tp_size=2, tp_plan=PLAN)},
    "fsdp2 + tp, 2 x 2": {"parallelism_config": ParallelismConfig(dp_shard_size=2, tp_size=2, tp_plan=PLAN)},
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_rank_holds_what_the_arithmetic_says(world: MakePool, name: str) -> None:
    (layout,) = [layout for layout in memory_picture.layouts(4) if layout.name == name]
    for sizes in world(4).run(held, MEASURED[name]):
        assert sizes == [layout.parameters, layout.gradients, layout.moments]


def test_the_picture_is_that_of_the_arithmetic() -> None:
    assert memory_picture.PICTURE.read_text() == memory_picture.picture(), (
        "python tests-integration/tools/memory_picture.py draws it anew"
    )
