"""docs/reference/checkpoint-format.md names what the code writes, and its reader reads it."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accel import Accelerator
from accel_checkpoint import json_state
from accel_checkpoint.manifest import FORMAT, RANK_STATES, VERSION
from accel_checkpoint.pieces import held_part
from accel_checkpoint.tensor_file import NAMES
from accel_data.resume.loader_state import LoaderState
from accel_testing import MakePool
from repository import ROOT
from torch.utils.data import DataLoader

TEXT = (ROOT / "docs" / "reference" / "checkpoint-format.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def keys_of(heading: str, table: int = 0) -> set[str]:
    """The names in the first column of a table below a heading."""
    section = TEXT.split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    rows = tables[table].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


class Counter:
    def state_dict(self) -> dict[str, Any]:
        return {"count": 3, "history": torch.ones(2), "shape": (1, float("inf"))}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def save(folder: str, strategy: str) -> dict[str, np.ndarray[Any, Any]]:
    """Saves what a checkpoint can have, and returns the whole weights."""
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    samples: Any = [torch.rand(4) for _ in range(8)]
    data = DataLoader(samples, batch_size=2, shuffle=True)
    model, optimizer, schedule, data = accelerator.prepare(model, optimizer, schedule, data)
    accelerator.register_for_checkpointing(Counter())
    for batch in data:
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(folder)
    weights = accelerator.get_state_dict(model)
    return {name: held_part(weight).numpy().copy() for name, weight in weights.items()}


@pytest.mark.parametrize(("size", "strategy"), [(1, "single"), (2, "fsdp2")])
def test_the_reader_of_the_page_reads_what_is_written(
    world: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, strategy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = world(size).run(save, "checkpoint", strategy)[0]
    names: dict[str, Any] = {}
    for block in BLOCKS[1:]:
        exec(compile(block, "the reader", "exec"), names)
    manifest = names["manifest"]
    assert names["weights"].keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(names["weights"][name], weight)
    assert set(manifest) == keys_of("The manifest", table=1) - (set() if size > 1 else {"parts"})
    assert set(manifest["about"]) == keys_of("About")
    assert all(set(entry) == {"size", "xxh3"} for entry in manifest["files"].values())
    assert all(set(entry) == {"generators"} for entry in manifest["ranks"])
    listed = keys_of("Items")
    for name, item in manifest["items"].items():
        assert name in listed or name.partition(":")[0] == "object"
        assert set(item) < keys_of("Items", table=1)
    assert set(manifest["items"]["loader"]["state"]) == keys_of("Items", table=2)
    assert set(manifest["items"]["clock"]["state"]) == {"steps", "taken", "window"}


@pytest.mark.parametrize("size", [1, 2])
def test_the_blocks_run_as_they_stand(
    world: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.chdir(tmp_path)
    world(size).run(run_all)


def run_all() -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "the page", "exec"), names)


def test_the_page_has_the_names_of_the_code() -> None:
    source = Path(json_state.__file__).read_text()
    tags = set(re.findall(r'"(\$\w+)"', source)) | {f"${kind.__name__}" for kind in (bytes, bytearray)}
    assert keys_of("Values") == tags
    dtypes = re.search(r"^The dtypes are (.*?)\.$", TEXT, re.MULTILINE | re.DOTALL)
    assert dtypes is not None
    assert set(re.findall(r"`(\w+)`", dtypes[1])) == set(NAMES.values())
    assert keys_of("Files of tensors") == {"accel.aliases", "accel.pieces"}
    assert keys_of("Items", table=2) == {field.name for field in fields(LoaderState)}
    assert f"`{FORMAT}`" in TEXT
    assert f"or 2 if there are `parts`, or {VERSION} if there is `{RANK_STATES}`" in TEXT
    beginning = re.search(r"`(\{\"format\":[^`]*)`", TEXT)
    assert beginning is not None
    assert json.loads(f"{beginning[1]}}}") == {"format": FORMAT}
