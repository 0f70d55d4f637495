import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from accel_checkpoint import AsyncWriter, Manifest, Snapshot, StagedCheckpoint, TensorFile, is_whole, plan_shards
from accel_testing import stretched
from suite.toy_models import Mlp
from torch import nn


class Full(Exception):
    pass


def fails() -> None:
    raise Full("no room")


def nothing() -> None:
    pass


def names(tensors: int, size: int = 64) -> dict[str, dict[str, torch.Tensor]]:
    return {"a": {f"x{number}": torch.full((size,), float(number)) for number in range(tensors)}, "b": {}}


def resident_bytes() -> int:
    """Units: bytes of memory that this process holds now, after what is free was given back."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_snapshot_is_of_one_moment() -> None:
    """Fault 17: the tensors are changed as soon as it returns, 100 times."""
    model, snapshot = Mlp(64, 512, 64), Snapshot()
    for number in range(100):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(number)
        taken = snapshot.take({"model": model.state_dict()})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(-1)
        assert all((one == number).all() for one in taken["model"].values())


def test_it_has_the_names_dtypes_and_numbers_of_what_was_taken() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    files = {
        "a": {
            "t": base.t(),
            "half": base.bfloat16(),
            "bool": base > 3,
            "one": torch.tensor(7),
            "none": torch.empty(0, 3),
            "conj": torch.tensor([1 + 2j]).conj(),
            "trained": nn.Parameter(base),
        },
        "b": {"t": base[::2]},
        "empty": {},
    }
    taken = Snapshot().take(files)
    assert {file: list(tensors) for file, tensors in taken.items()} == {file: list(files[file]) for file in files}
    for file, tensors in files.items():
        for name, tensor in tensors.items():
            copy = taken[file][name]
            assert (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(copy, tensor.detach())
            assert not copy.requires_grad
            assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not copy.numel()


def test_tensors_of_a_gpu_are_copied_into_pinned_memory(device: torch.device) -> None:
    """Weights too: a plan of shards leaves them where they are."""
    plan = plan_shards({"w": torch.ones(4, device=device)}, stem="model", suffix=".safetensors", max_bytes=100)
    copy = Snapshot().take(plan.files)["model.safetensors"]["w"]
    assert copy.is_pinned() == (device.type == "cuda")
    assert copy.tolist() == [1.0] * 4


def test_its_memory_is_kept_from_one_to_the_next_and_no_more_of_it_is() -> None:
    snapshot, files = Snapshot(), names(4, 1 << 20)
    places = {name: one.data_ptr() for name, one in snapshot.take(files)["a"].items()}
    before = resident_bytes()
    for _ in range(50):
        taken = snapshot.take(files)
        assert {name: one.data_ptr() for name, one in taken["a"].items()} == places
    assert resident_bytes() - before < 8 << 20


def test_memory_of_what_is_not_taken_any_more_is_given_back() -> None:
    snapshot = Snapshot()
    # of more than 32 MiB each, as blocks that malloc never keeps
    snapshot.take(names(3, 10 << 20))
    before = resident_bytes()
    taken = snapshot.take(names(1, 10 << 20))
    assert before - resident_bytes() > 40 << 20
    assert (taken["a"]["x0"] == 0).all()


@pytest.mark.parametrize(
    "other", [torch.ones(3), torch.ones(64, dtype=torch.float64), torch.ones(8, 8), torch.ones(())]
)
def test_another_shape_or_dtype_under_the_same_name_is_taken_as_well(other: torch.Tensor) -> None:
    snapshot = Snapshot()
    snapshot.take(names(1))
    taken = snapshot.take({"a": {"x0": other}})["a"]["x0"]
    assert (taken.dtype, taken.shape) == (other.dtype, other.shape)
    assert torch.equal(taken, other)


def test_a_snapshot_can_be_taken_in_a_forked_process(tmp_path: Path, forking_python: str) -> None:
    """A pool of threads that was begun before a fork has none after it, and waits for ever."""
    code = (
        "import os, torch, warnings\nfrom accel_checkpoint import Snapshot\n"
        "warnings.simplefilter('ignore')\n"
        "files = {'a': {str(n): torch.ones(9) for n in range(8)}}\nSnapshot().take(files)\n"
        "child = os.fork()\nif not child:\n    Snapshot().take(files)\n    os._exit(0)\n"
        "import time\nfor _ in range(600):\n    time.sleep(0.05)\n    done, status = os.waitpid(child, os.WNOHANG)\n"
        "    if done:\n        break\nelse:\n    os.kill(child, 9)\n    os.waitpid(child, 0)\n    status = 1\n"
        "raise SystemExit(status)\n"
    )
    assert in_a_process(code, tmp_path, forking_python).returncode == 0


def test_work_goes_on_while_training_does_and_is_over_after_wait() -> None:
    writer, free, done = AsyncWriter(), threading.Event(), list[int]()
    assert not writer.busy

    def work() -> None:
        free.wait(stretched(10))
        done.append(1)

    writer.begin(work)
    assert writer.busy
    assert done == []
    free.set()
    writer.wait()
    assert done == [1]
    assert not writer.busy
    writer.wait()


def test_the_next_work_waits_for_the_one_before() -> None:
    """Back-pressure: never two at a time, whose memory would be the same."""
    writer, at_once, most, ended = AsyncWriter(), list[int](), list[int](), list[int]()

    def work() -> None:
        at_once.append(1)
        most.append(len(at_once))
        time.sleep(0.05)
        ended.append(at_once.pop())

    for begun in range(4):
        writer.begin(work)
        assert len(ended) >= begun
    writer.wait()
    assert most == [1, 1, 1, 1]


@pytest.mark.parametrize("then", [lambda one: one.wait(), lambda one: one.begin(nothing)], ids=["wait", "begin"])
def test_an_error_is_raised_once_and_by_what_comes_next(then: Callable[[AsyncWriter], None]) -> None:
    """Fault 18."""
    writer = AsyncWriter()
    writer.begin(fails)
    with pytest.raises(Full, match="no room"):
        then(writer)
    assert not writer.busy
    writer.wait()
    then(writer)
    writer.wait()


def test_nothing_is_begun_after_an_error() -> None:
    writer, done = AsyncWriter(), list[int]()
    writer.begin(fails)
    with pytest.raises(Full):
        writer.begin(lambda: done.append(1))
    writer.wait()
    assert done == []


def test_a_wait_that_was_interrupted_can_be_done_again() -> None:
    """Else the next snapshot would be taken into the memory that is being written."""
    writer, free, main = AsyncWriter(), threading.Event(), threading.main_thread().ident
    assert main is not None

    def work() -> None:
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)
        free.wait(stretched(10))
        raise Full

    writer.begin(work)
    try:
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
        assert writer.busy
    finally:
        free.set()
    with pytest.raises(Full):
        writer.wait()


def in_a_process(code: str, folder: Path, python: str = sys.executable) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    command = [python, "-c", code, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), env=environ, check=False)


SAVES = """
import sys, time, torch
from pathlib import Path
from accel_checkpoint import AsyncWriter, Manifest, Snapshot, StagedCheckpoint
target = Path(sys.argv[1]) / "last"
snapshot, writer = Snapshot(), AsyncWriter()

def work():
    time.sleep(0.3)
    stage = StagedCheckpoint(target)
    for number in range(20):
        stage.write_tensors(f"{number}.safetensors", taken["a"])
    stage.seal(Manifest(files=stage.files))
    stage.commit()

taken = snapshot.take({"a": {"x": torch.ones(1000)}})
writer.begin(work)
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise ValueError('of the script')", 1), ("sys.exit(3)", 3)])
def test_what_was_begun_is_whole_when_the_process_has_ended(
    tmp_path: Path, end: str, code: int, forking_python: str
) -> None:
    """A real Python comes to its end by itself; a script that fails is forked."""
    done = in_a_process(SAVES + end, tmp_path, forking_python if code else sys.executable)
    assert done.returncode == code, done.stderr
    assert os.listdir(tmp_path) == ["last"]
    assert is_whole(tmp_path / "last")


def test_an_error_that_nobody_was_there_to_hear_is_the_exit_code(tmp_path: Path, forking_python: str) -> None:
    (tmp_path / "last").write_text("a file is in the way")
    done = in_a_process(SAVES + "print('trained')", tmp_path, forking_python)
    assert done.returncode == 1
    assert done.stdout == "trained\n"
    assert "Traceback" in done.stderr
    assert "CheckpointError" in done.stderr
    assert f"{tmp_path / 'last'} is a file" in done.stderr
    assert (tmp_path / "last").read_text() == "a file is in the way"


def test_an_error_that_was_heard_is_not_the_exit_code(tmp_path: Path, forking_python: str) -> None:
    (tmp_path / "last").write_text("a file is in the way")
    done = in_a_process(SAVES + "try: writer.wait()\nexcept Exception: print('heard')", tmp_path, forking_python)
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n", "")


def test_a_checkpoint_of_a_moment_is_written_while_the_tensors_change(tmp_path: Path) -> None:
    model, snapshot, writer = Mlp(32, 256, 8), Snapshot(), AsyncWriter()

    def put(taken: dict[str, dict[str, torch.Tensor]], number: int) -> None:
        stage = StagedCheckpoint(tmp_path / f"checkpoint_{number}")
        stage.write_tensors("model.safetensors", taken["model"])
        stage.seal(Manifest({}, stage.files))
        stage.commit()

    for number in range(10):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(number)
        writer.wait()
        taken = snapshot.take({"model": model.state_dict()})
        writer.begin(partial(put, taken, number))
    writer.wait()
    for number in range(10):
        file = TensorFile(tmp_path / f"checkpoint_{number}" / "model.safetensors")
        assert all((file[name] == number).all() for name in file.header.tensors)


def test_work_that_no_thread_can_be_had_for_is_refused_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    writer = AsyncWriter()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            writer.begin(lambda: None)
    writer.wait()
    assert not writer.busy
