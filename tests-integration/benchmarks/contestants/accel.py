"""accel as a contestant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch.utils.data import DataLoader

from benchmarks.contestants.library import Library
from benchmarks.row import Skipped


@final
class Accel(Library):
    """accel of this tree."""

    def prepared(self, loader: DataLoader[Any], *, dispatch_batches: bool | None = None) -> DataLoader[Any]:
        from accel import Accelerator, DataLoaderConfiguration

        config = DataLoaderConfiguration(dispatch_batches=dispatch_batches)
        ready: DataLoader[Any] = Accelerator(cpu=True, dataloader_config=config).prepare(loader)
        return ready

    def share(self, loader: DataLoader[Any], *, world: int, rank: int) -> DataLoader[Any]:
        from accel_data import prepare_data_loader

        return prepare_data_loader(loader, num_processes=world, process_index=rank)

    def resumed(self, make: Callable[[], DataLoader[Any]], *, consumed: int) -> Callable[[], DataLoader[Any]]:
        early: Any = self.prepared(make())
        if not hasattr(early, "load_state_dict"):
            raise Skipped("loaders of this accel have no state_dict and load_state_dict")
        stream = iter(early)
        next(stream)
        state = early.state_dict()
        del stream
        state["consumed"] = consumed
        state.pop("digest", None)  # of the samples served until then

        def at_consumed() -> DataLoader[Any]:
            ready: Any = self.prepared(make())
            ready.load_state_dict(state)
            loader: DataLoader[Any] = ready
            return loader

        return at_consumed
