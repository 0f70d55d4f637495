"""The scripts that Accelerate installs for its own tests, through the door: what passes, and what cannot and why.

`nox -s clients` has an environment with Accelerate 1.15; elsewhere the tests are skipped.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

import pytest
from accel_testing import stretched
from silent_environ import silent

RUNNER = Path(__file__).with_name("run_peer_script.py")
SCRIPTS = "accelerate/test_utils/scripts"
PEER = "1.15.0"
SHORT_WINDOW = "a window that the end of an epoch cuts short is divided by its real length"
LAUNCHES_ONCE = "notebook_launcher starts processes once, and raises an error of its own"
NO_HUB = "it reads a model and a dataset of the Hub"

#: each script with the counts of processes that it is for
RUN = {
    "test_cli": (1, 2),
    "test_ddp_comm_hook": (2,),
    "test_distributed_data_loop": (2,),
    "test_notebook": (1, 2),
    "test_ops": (1, 2),
    "test_script": (1, 2),
    "test_sync": (1, 2),
}
#: checks that cannot pass, and why; every other check of these scripts has to
CANNOT: dict[tuple[str, str], str] = {
    (
        "test_script",
        "test_reinstantiated_state",
    ): "an Accelerator keeps its run, so a reset of the state breaks nothing",
    ("test_sync", "check_model_parameters"): SHORT_WINDOW,
    ("test_ddp_comm_hook", "test_ddp_comm_hook"): ("torch 2.13 fails in it when PowerSGD begins, so it is refused"),
    ("test_notebook", "test_fault_tolerant"): LAUNCHES_ONCE,
    ("test_notebook", "test_monitoring"): LAUNCHES_ONCE,
    ("test_distributed_data_loop", "test_join_raises_warning_for_iterable_when_overriding_even_batches"): (
        "streams take even_batches too, so there is nothing to warn of"
    ),
    ("test_distributed_data_loop", "test_join_raises_warning_for_non_ddp_distributed"): (
        "the strategy decides whether processes may end alone, and not a name that a script has set"
    ),
    ("test_distributed_data_loop", "test_stateful_dataloader_save_state"): (
        "its processes save one checkpoint into a folder each, which is refused; the loaders' states are tested here"
    ),
}
#: scripts that are not run, and why
NOT_RUN = {
    "test_merge_weights": "it is for two accelerators, and wraps by FSDP1 by hand",
    "external_deps/test_checkpointing": NO_HUB,
    "external_deps/test_ds_alst_ulysses_sp": "sequences cannot be divided over ranks yet",
    "external_deps/test_ds_multiple_model": NO_HUB,
    "external_deps/test_metrics": NO_HUB,
    "external_deps/test_peak_memory_usage": NO_HUB,
    "external_deps/test_performance": NO_HUB,
    "external_deps/test_pippy": "torch.distributed.pipelining divides a model into stages",
    "external_deps/test_zero3_integration": NO_HUB,
}
asked = pytest.mark.skipif("ACCEL_CLIENTS" not in os.environ, reason="they take minutes: nox -s clients runs them")


def folder_of_scripts() -> Path:
    """The scripts of the release that the list is of; the test is skipped where it is not installed."""
    try:
        if version("accelerate") == PEER:
            (path,) = [path for path in files("accelerate") or () if str(path) == f"{SCRIPTS}/__init__.py"]
            return Path(str(path.locate())).parent
    except PackageNotFoundError:
        pass
    pytest.skip(f"needs accelerate {PEER}")


@asked
def test_every_script_of_accelerate_is_accounted_for() -> None:
    """S184."""
    folder = folder_of_scripts()
    found = {str(path.relative_to(folder).with_suffix("")) for path in folder.glob("**/test_*.py")}
    assert found == {*RUN, *NOT_RUN}


@asked
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("script", "count"), [(name, count) for name, counts in RUN.items() for count in counts])
def test_checks_of_accelerate_pass_but_for_those_that_are_said_to_differ(
    script: str, count: int, tmp_path: Path
) -> None:
    """S184."""
    environ = {**silent(tmp_path), "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1"}
    path = folder_of_scripts() / f"{script}.py"
    launch = ["-m", "accel", "launch", "--as_accelerate", "--cpu", "-n", str(count)]
    done = subprocess.run(
        [sys.executable, *launch, str(RUNNER), str(path), str(tmp_path)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=stretched(280),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in range(count):
        results: dict[str, str] = json.loads((tmp_path / f"{script}-{rank}.json").read_text())
        assert results.pop("by").startswith("accel.")
        failed = {name: words for name, words in results.items() if words != "passed"}
        expected = [check for of, check in CANNOT if of == script]
        surprises = {name: words for name, words in failed.items() if not name.startswith(tuple(expected))}
        assert surprises == {}, f"rank {rank}"
        if count == 2:
            better = [check for check in expected if not any(name.startswith(check) for name in failed)]
            assert better == [], "a check that is said to differ passes: take it off the list"
