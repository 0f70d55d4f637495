"""Which backend the process group gets, and how the group is closed at the end of the script."""

import resource
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from accel_comm import process_group
from accel_comm.process_group import (
    GroupOptions,
    _close_at_exit,
    _let_gloo_finish,
    allow_open_files,
    open_group,
    with_cpu,
)
from accel_testing import MakePool, stretched
from torch._C._distributed_c10d import HashStore, Store


@pytest.mark.parametrize(
    ("asked", "opened"),
    [
        ("nccl", "cpu:gloo,cuda:nccl"),
        ("NCCL", "cpu:gloo,cuda:nccl"),
        ("xccl", "cpu:gloo,xpu:xccl"),
        ("gloo", "gloo"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
        ("of a plug-in", "of a plug-in"),
    ],
)
def test_a_backend_without_the_cpu_gets_gloo_beside_it(asked: str, opened: str) -> None:
    """accel exchanges sizes and objects on the CPU, whatever the tensors are on."""
    assert with_cpu(asked) == opened


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What groups register for the exit while torch opens none; stores hold the addresses that torch would write."""
    registered: list[Any] = []
    monkeypatch.setattr(process_group, "atexit", SimpleNamespace(register=registered.append))
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, *, store, **given: store.set("address", backend))
    return registered


def test_each_group_has_its_own_place_in_a_store(at_exit: list[Any]) -> None:
    """Processes count alike, though an opening of some failed before: they find each other at the same number."""
    store = HashStore()

    def fails() -> Store:
        raise ConnectionError("nobody listens")

    with pytest.raises(ConnectionError):
        open_group(0, 1, "gloo", GroupOptions(), fails)
    for _ in range(2):
        assert open_group(0, 1, "gloo", GroupOptions(), lambda: store)
    assert store.check(["1/0/address"])
    assert store.check(["1/1/address"])
    assert not store.check(["1/2/address"])


def test_threads_of_gloo_have_time_after_the_group_is_closed(at_exit: list[Any]) -> None:
    """What is registered last is called first."""
    open_group(0, 1, "gloo", GroupOptions(), HashStore)
    assert at_exit == [_let_gloo_finish, _close_at_exit]


def test_a_thread_that_waits_for_the_interpreter_gets_it_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the end of Python kills it, with some releases of torch the process as well."""
    clock = SimpleNamespace(sleep=lambda seconds: time.sleep(stretched(seconds * 5)))
    monkeypatch.setattr(process_group, "time", clock)
    closed, let_go = threading.Event(), list[bool]()
    thread = threading.Thread(target=lambda: let_go.append(closed.wait(stretched(60))), daemon=True)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(stretched(60))  # nobody takes the interpreter from this thread
    try:
        closed.set()
        before = list(let_go)
        _let_gloo_finish()
        after = list(let_go)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert (before, after) == ([], [True])


@pytest.mark.parametrize("failed", [True, False])
def test_at_exit_the_group_is_closed_unless_an_error_was_not_caught(
    monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr("accel_comm.process_group.close_group", lambda: closed.append(True))
    monkeypatch.delattr(sys, "last_value", raising=False)
    if failed:
        monkeypatch.setattr(sys, "last_value", ValueError("bad shard"), raising=False)
    _close_at_exit()
    assert closed == ([] if failed else [True])


class Nccl:
    """Stands in for a group of NCCL's: notes when it is aborted, and in which common block."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def _group_start(self) -> None:
        self.calls.append("begin")

    def _group_end(self) -> None:
        self.calls.append("end")

    def abort(self) -> None:
        self.calls.append(self.name)


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        (["cpu:gloo,cuda:nccl"], ["begin", "0 cuda", "end"]),
        (["cpu:gloo,cuda:gloo"], []),
        (["cpu:gloo,cuda:nccl", "cpu:gloo", "cuda:nccl"], ["begin", "2 cuda", "0 cuda", "end"]),
        (["cpu:gloo,cuda:gloo", "cuda:nccl"], ["begin", "1 cuda", "end"]),
    ],
)
def test_after_an_error_no_exchange_of_a_device_holds_up_the_exit(
    monkeypatch: pytest.MonkeyPatch, configs: list[str], expected: list[str]
) -> None:
    """Nor one of a group that the script has opened itself."""
    calls: list[str] = []

    def group(number: int) -> SimpleNamespace:
        return SimpleNamespace(number=number, _get_backend=lambda device: Nccl(f"{number} {device.type}", calls))

    groups = [group(number) for number in range(len(configs))]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: configs[group.number])
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_names=groups))
    monkeypatch.setattr(sys, "last_value", ValueError("bad shard"), raising=False)
    _close_at_exit()
    assert calls == expected


def groups_of_a_script() -> list[str]:
    mine, others = dist.new_group([dist.get_rank()]), dist.new_group([1 - dist.get_rank()])
    assert mine is not others
    return [dist.get_backend_config(group) for group in dist.distributed_c10d._world.pg_names]


def test_torch_lists_the_groups_of_a_script(world: MakePool) -> None:
    """Where they are looked for after an error."""
    for configs in world(2).run(groups_of_a_script):
        assert len(configs) == 2
        assert all("cpu:gloo" in config for config in configs)


@pytest.mark.parametrize(
    ("limits", "raised", "warns"),
    [
        ((10_000, 20_000), None, False),
        ((1_024, 20_000), (8_256, 20_000), False),
        ((1_024, resource.RLIM_INFINITY), (8_256, resource.RLIM_INFINITY), False),
        ((1_024, 4_096), (4_096, 4_096), True),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, False),
    ],
)
def test_the_limit_of_open_files_is_raised_for_a_large_group(
    limits: tuple[int, int],
    raised: tuple[int, int] | None,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1,024 open files, the usual limit, ended near 250 ranks."""
    now = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, wanted: now.append(wanted))
    allow_open_files(1, 2_000)
    assert now[1:] == ([raised] if raised else [])
    now[1:] = []
    allow_open_files(0, 2_000)
    text = "a process may have 4096 open files here, and a job of 2000 processes may need 8256: raise the hard limit"
    assert (text in caplog.text) == warns
