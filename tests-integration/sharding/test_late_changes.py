"""What a script does to a model or an optimizer around `prepare` is exact, or refused in words, in each layout."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import late_changes_table
import pytest
import torch
from accel import DeepSpeedPlugin, ParallelismConfig
from accel_state import release
from accel_testing import MakePool, ProcessPool, stretched
from late_changes import CHANGES, PLAN, Training
from late_changes_table import COLUMNS, REFUSALS, UNSEEN, WARNED
from suite.soak import in_soak
from torch import Tensor

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "ddp": (2, {"strategy": "ddp"}),
    "fsdp2": (2, {"strategy": "fsdp2"}),
    "HSDP": (4, {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)}),
    "TP": (2, {"parallelism_config": ParallelismConfig(tp_size=2, tp_plan=PLAN)}),
}
#: what an Accelerator defines: one process is the measure
ITS_OWN = {"weighted_backwards", "backwards_of_a_window"}
SCRIPT = Path(__file__).parents[1] / "scripts" / "late_changes.py"


def result(name: str, ways: dict[str, Any] | None, dtype: torch.dtype, zeros: bool) -> dict[str, Tensor] | str:
    """All numbers, or the words of the refusal."""
    release()  # the ranks of a layout make all changes in turn
    training = Training(ways, dtype, zeros=zeros)
    try:
        CHANGES[name](training)
    except (ValueError, RuntimeError, TypeError, IndexError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return training.result()


def compare(found: dict[str, Tensor] | str, wanted: dict[str, Tensor] | str, name: str, column: str) -> None:
    """Raises: AssertionError unless what was found is what the table says."""
    assert not isinstance(wanted, str), wanted
    words = REFUSALS.get(name, {}).get(column)
    if words is not None:
        assert re.search(words, str(found), re.DOTALL), found
        return
    assert not isinstance(found, str), found
    if (name, column) in WARNED:
        return  # see test_a_hook_beside_an_engine_is_warned_of
    if (name, column) in UNSEEN:
        differs = any(not torch.allclose(found[key], wanted[key]) for key in found)
        assert differs or found.keys() != wanted.keys(), "this works by now"
        return
    tolerance = 1e-9 if found["first.weight"].dtype is torch.float64 else 2e-6
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, check_device=False)


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest) -> Iterator[Callable[[str], ProcessPool]]:
    """Starts the ranks of a layout once: what fresh ones compute first costs more than a change."""
    with ExitStack() as stack:

        @cache
        def start(layout: str) -> ProcessPool:
            preload = request.config.getini("world_preload")
            return stack.enter_context(ProcessPool(LAYOUTS[layout][0], preload=preload))

        yield start


@cache
def on_one_process(name: str) -> dict[str, Tensor] | str:
    return result(name, {} if name in ITS_OWN else None, torch.float64, False)


@pytest.mark.parametrize("layout", ["ddp", "fsdp2", "TP", *in_soak("HSDP")])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_exact_or_refused(ranks: Callable[[str], ProcessPool], name: str, layout: str) -> None:
    """S33, S46: compared with plain PyTorch on one process that has the whole batch, in float64."""
    for found in ranks(layout).run(result, name, LAYOUTS[layout][1], torch.float64, False):
        compare(found, on_one_process(name), name, layout)


def with_engine(name: str, stage: int) -> dict[str, Tensor] | str:
    return result(name, {"deepspeed_plugin": DeepSpeedPlugin(zero_stage=stage)}, torch.float32, False)


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.grid(1)
@pytest.mark.parametrize("stage", [2, 3, *in_soak(1)])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_beside_an_engine_is_exact_or_refused(world: MakePool, name: str, stage: int) -> None:
    """DeepSpeed steps with zeros what has no gradient."""
    wanted = result(name, {} if name in ITS_OWN else None, torch.float32, True)
    for found in world(2).run(with_engine, name, stage, timeout_s=60):
        compare(found, wanted, name, "DeepSpeed 3" if stage == 3 else "DeepSpeed 1, 2")


def hooked_with_engine() -> list[str]:
    noted: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: noted.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("accel").addHandler(handler)
    with_engine("lbfgs", 2)
    before = len([line for line in noted if "hooks of the gradients" in line])
    for name in ("clipping_hook", "clipping_grown_hook", "stepping_hook"):
        with_engine(name, 2)
    return [f"{before} before", *(line for line in noted if "hooks of the gradients" in line)]


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_a_hook_beside_an_engine_is_warned_of(world: MakePool) -> None:
    """DeepSpeed averages gradients after the hooks of parameters."""
    for before, *lines in world(2).run(hooked_with_engine, timeout_s=60):
        assert before == "0 before"
        assert len(lines) == 3
        assert all("have the gradients of their process" in line for line in lines)


@pytest.mark.soak(only=True)
@pytest.mark.device
@pytest.mark.skipif(find_spec("torch_xla") is None, reason="torch_xla is not installed")
def test_changes_over_xla_devices_are_exact_or_refused(tmp_path: Path) -> None:
    """Each way in a process of its own: a backward on the host keeps torch from XLA's devices."""
    environ = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for way in ("hand", "one", "spmd"):
        command = [sys.executable, str(SCRIPT), way, str(tmp_path / way)]
        subprocess.run(command, env=environ, timeout=stretched(900), check=True)
    by_hand, one, spmd = (torch.load(tmp_path / way) for way in ("hand", "one", "spmd"))
    for name in CHANGES:
        compare(spmd[name], (one if name in ITS_OWN else by_hand)[name], name, "spmd")


def test_the_table_has_an_entry_for_each_change_and_strategy() -> None:
    assert set(REFUSALS) <= set(CHANGES)
    assert {name for name, _ in UNSEEN} <= set(CHANGES)
    assert {column for words in REFUSALS.values() for column in words} | {column for _, column in UNSEEN} <= set(
        COLUMNS
    )


def test_the_page_has_the_table_of_the_tests() -> None:
    found = late_changes_table.PLACE.search(late_changes_table.PAGE.read_text())
    assert found is not None
    assert found[0] == late_changes_table.table(), "python tests-integration/tools/late_changes_table.py writes it anew"
