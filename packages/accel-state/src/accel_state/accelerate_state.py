"""Show the run of this process under the names that training scripts know."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

from accel_comm.process_group import GroupOptions

from accel_state.process_control import ProcessControl
from accel_state.run import Run, RunRequest
from accel_state.run_context import acquire, ask_anew, current, is_initialized, release

if TYPE_CHECKING:
    import torch


@final
class _SharedState:
    """The attribute that libraries for Accelerate look at: empty until the process has a run."""

    def __get__(self, instance: object, owner: type) -> dict[str, bool]:
        return {"initialized": True} if is_initialized() else {}


class _StateOfProcess:
    """The run of this process, which every instance sees."""

    _shared_state = _SharedState()

    @property
    def run(self) -> Run:
        """The current run."""
        return current()

    @property
    def initialized(self) -> bool:
        """True if the process has a run."""
        return is_initialized()

    def destroy_process_group(self) -> None:
        """End the run of this process, and close the process group if the run has opened it."""
        release()


@final
class PartialState(_StateOfProcess, ProcessControl):
    """The run of this process, started if no code has started it yet.

    Every instance sees the same run.

    Args:
        cpu: Whether to run on the CPU.
        backend: Backend of the process group, if it is opened here.
        init_method: URL at which processes meet.
        timeout: Longest wait for another process, 30 minutes by default.

    Raises:
        RunConflict: The run has other settings.

    Collective:
        The first call of a job waits for all processes.
    """

    def __init__(
        self,
        cpu: bool = False,
        *,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        acquire(RunRequest(cpu=cpu, group=GroupOptions(backend, init_method, timeout)))

    def __repr__(self) -> str:
        return _shown(self)

    @property
    def default_device(self) -> torch.device:
        """The device of this process."""
        return self.device

    def set_device(self) -> None:
        """Do nothing: the device was chosen when the run began."""

    @staticmethod
    def _reset_state() -> None:
        ask_anew(start=True)


@final
class AcceleratorState(_StateOfProcess, ProcessControl):
    """The run of this process and its precision.

    Every instance sees the same run.

    Args:
        mixed_precision: Name of the precision. An Accelerator refuses a name that is none.
        cpu: Whether to run on the CPU.

    Raises:
        RunConflict: The run has other settings.

    Collective:
        The first call of a job waits for all processes.
    """

    def __init__(self, mixed_precision: str | None = None, cpu: bool = False) -> None:
        acquire(RunRequest(cpu=cpu, precision=mixed_precision))

    def __repr__(self) -> str:
        return f"{_shown(self)}\nMixed precision type: {self.mixed_precision}" if self.initialized else _shown(self)

    @property
    def mixed_precision(self) -> str:
        """The name of the precision: "no" until an Accelerator or an AcceleratorState has asked for one."""
        return self.run.precision or "no"

    @property
    def deepspeed_plugin(self) -> Any:
        """The options by which DeepSpeed's engine trains for the newest Accelerator, or None without the engine."""
        return self.run.plugins.get("deepspeed_plugin")

    @property
    def fsdp_plugin(self) -> Any:
        """The options by which the newest Accelerator shards models, or None if it does not."""
        return self.run.plugins.get("fsdp_plugin")

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        ask_anew(start=reset_partial_state)


def _shown(state: PartialState | AcceleratorState) -> str:
    """Return rank, device and kind of set-up, in the lines that Accelerate prints."""
    if not state.initialized:
        return f"{type(state).__name__} of a process that has no run"
    return (
        f"Distributed environment: {state.distributed_type}\n"
        f"Num processes: {state.num_processes}\n"
        f"Process index: {state.process_index}\n"
        f"Local process index: {state.local_process_index}\n"
        f"Device: {state.device}"
    )
