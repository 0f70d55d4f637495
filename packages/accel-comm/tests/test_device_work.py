"""A watchdog asks a device for its work while the script captures a CUDA graph, which the question must not break."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from accel_comm.transports import device_work
from accel_comm.transports.device_work import work_of


class Driver:
    """Stands in for the driver: a thread in the usual mode (0) may not ask while another captures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, platform: str, *, has_modes: bool = True) -> None:
        self.mode = threading.local()
        self.exchanges: list[str] = []
        self.broken = self.contexts_elsewhere = False
        self.libraries: list[str] = []
        self.has_modes = has_modes
        # found anew by each test, as threads may get the number of one that has ended
        monkeypatch.setattr(device_work, "_permitted", threading.local())
        monkeypatch.setattr("torch.version.cuda", "13.0" if platform == "cuda" else None)
        monkeypatch.setattr("torch.version.hip", "7.0" if platform == "hip" else None)
        monkeypatch.setattr(ctypes, "CDLL", self.library)
        self.current = threading.local()
        monkeypatch.setattr("torch.accelerator.device_index", self.device_index)

    @contextmanager
    def device_index(self, index: int) -> Iterator[None]:
        self.current.index = index
        yield
        self.current.index = 0

    def stream(self) -> Any:
        return SimpleNamespace(record_event=lambda: self, device=SimpleNamespace(index=1))

    def library(self, name: str) -> Any:
        self.libraries.append(name)
        if not self.has_modes:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(
            cuThreadExchangeStreamCaptureMode=self.exchange, hipThreadExchangeStreamCaptureMode=self.exchange
        )

    def exchange(self, mode: Any) -> int:
        self.exchanges.append(threading.current_thread().name)
        self.mode.value = mode._obj.value
        return 0

    def query(self) -> bool:
        # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, hipStreamCaptureModeThreadLocal
        if getattr(self.mode, "value", 0) != 1 and threading.current_thread() is not threading.main_thread():
            self.broken = True
        if getattr(self.current, "index", 0) != 1 and threading.current_thread() is not threading.main_thread():
            self.contexts_elsewhere = True
        return True


def asked_by_another_thread(driver: Driver, times: int = 1) -> list[bool]:
    done, answers = work_of(driver.stream()), list[bool]()
    thread = threading.Thread(target=lambda: answers.extend(done() for _ in range(times)), name="watchdog")
    thread.start()
    thread.join()
    return answers


@pytest.mark.parametrize(("platform", "library"), [("cuda", "libcuda.so.1"), ("hip", "libamdhip64.so")])
def test_a_question_of_another_thread_breaks_no_capture(
    monkeypatch: pytest.MonkeyPatch, platform: str, library: str
) -> None:
    driver = Driver(monkeypatch, platform)
    assert asked_by_another_thread(driver, 3) == [True] * 3
    assert not driver.broken
    assert (driver.exchanges, driver.libraries) == (["watchdog"], [library])


def test_each_thread_has_a_mode_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, "cuda")
    for _ in range(2):
        asked_by_another_thread(driver)
    assert not driver.broken
    assert driver.exchanges == ["watchdog"] * 2


def test_the_mode_of_the_thread_that_captures_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, "cuda")
    assert work_of(driver.stream())()
    assert driver.exchanges == []


@pytest.mark.parametrize(("platform", "has_modes"), [("none", True), ("cuda", False)])
def test_a_device_without_modes_is_asked_all_the_same(
    monkeypatch: pytest.MonkeyPatch, platform: str, has_modes: bool
) -> None:
    driver = Driver(monkeypatch, platform, has_modes=has_modes)
    assert asked_by_another_thread(driver) == [True]
    assert driver.exchanges == []


def test_a_thread_makes_no_context_on_the_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, "cuda")
    assert asked_by_another_thread(driver, 2) == [True] * 2
    assert not driver.contexts_elsewhere
    assert not hasattr(driver.current, "index"), "the device of the thread that trains is its own"
