"""Hugging Face Accelerate as a contestant."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, final

from torch.utils.data import DataLoader

from benchmarks.contestants.library import Library
from benchmarks.row import Skipped


@final
class Accelerate(Library):
    """Accelerate, with defaults wherever the row asks for nothing."""

    def prepared(self, loader: DataLoader[Any], *, dispatch_batches: bool | None = None) -> DataLoader[Any]:
        _need()
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        config = DataLoaderConfiguration(dispatch_batches=dispatch_batches)
        ready: DataLoader[Any] = Accelerator(cpu=True, dataloader_config=config).prepare(loader)
        return ready

    def share(self, loader: DataLoader[Any], *, world: int, rank: int) -> DataLoader[Any]:
        _need()
        from accelerate import PartialState
        from accelerate.data_loader import prepare_data_loader

        PartialState(cpu=True)  # its loaders read the state as they go
        ready: DataLoader[Any] = prepare_data_loader(loader, num_processes=world, process_index=rank)
        return ready

    def resumed(self, make: Callable[[], DataLoader[Any]], *, consumed: int) -> Callable[[], DataLoader[Any]]:
        _need()
        from accelerate import skip_first_batches

        size = make().batch_size
        if size is None:
            raise Skipped("it skips batches, and these have no size")

        def at_consumed() -> DataLoader[Any]:
            loader: DataLoader[Any] = skip_first_batches(self.prepared(make()), consumed // size)
            return loader

        return at_consumed


def _need() -> None:
    if find_spec("accelerate") is None:
        raise Skipped("pip install accelerate==1.15.0")
