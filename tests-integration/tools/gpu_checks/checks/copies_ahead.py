"""Batches that are copied ahead arrive whole, also if the allocator is short and the GPU is behind."""

from __future__ import annotations

from typing import Any

import torch
from accel import Accelerator, DataLoaderConfiguration
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset

from gpu_checks.check import Findings, Setup

BATCH = 4


class Numbered(Dataset[Tensor]):
    """Each sample is filled with its number."""

    def __init__(self, count: int, width: int) -> None:
        self.count, self.width = count, width

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((self.width,), float(index), device="cpu")


class Own:
    """A batch of a script's own class, with a `to` of its own."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def to(self, device: Any, non_blocking: bool = False) -> Own:
        """The batch on the device."""
        return Own(self.rows.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Own:
        """The batch in pinned memory."""
        return Own(self.rows.pin_memory())


def collated(samples: list[Tensor]) -> dict[str, Any]:
    """Tensors, objects of the script's and packed sequences, side by side."""
    rows = torch.stack(samples)
    return {"rows": rows, "own": Own(rows.clone()), "packed": pack_sequence(samples)}


def run(setup: Setup, findings: Findings) -> None:
    """Compares every number of every batch with what the dataset holds, over many epochs."""
    epochs, count, width = setup.size(40, 3), setup.size(64, 16), setup.size(1 << 18, 1 << 10)
    accelerator = Accelerator(cpu=setup.rehearsal, dataloader_config=DataLoaderConfiguration(non_blocking=True))
    inner = DataLoader(Numbered(count, width), BATCH, collate_fn=collated, pin_memory=not setup.rehearsal)
    loader: Any = accelerator.prepare(inner)
    wrong = torch.zeros((), dtype=torch.int64, device=accelerator.device)
    busy = torch.randn(setup.size(4096, 64), setup.size(4096, 64), device=accelerator.device)
    reserved = []
    for _ in range(epochs):
        for place, batch in enumerate(loader):
            for _ in range(12):  # the GPU falls behind the host, which goes on copying
                busy = torch.tanh(busy @ busy)
            litter = [torch.full((BATCH, width), -1.0, device=accelerator.device) for _ in range(2)]
            expected = torch.arange(BATCH, device=accelerator.device).unsqueeze(1) + place * BATCH
            packed: PackedSequence = batch["packed"]
            assert packed.batch_sizes.device.type == "cpu", packed.batch_sizes.device
            for rows in (batch["rows"], batch["own"].rows, packed.data.reshape(width, BATCH).T):
                assert rows.device == accelerator.device, rows.device
                wrong += (rows != expected).sum()
            del litter, batch, packed, rows
        if not setup.rehearsal:
            reserved.append(torch.cuda.memory_reserved())
    findings.facts |= {"epochs": epochs, "batches": epochs * count // BATCH, "wrong numbers": int(wrong.item())}
    assert wrong.item() == 0, f"{int(wrong.item())} numbers of batches were overwritten before they were used"
    if reserved:
        findings.facts["GiB reserved after epoch 5"] = reserved[4] / 2**30
        findings.facts["GiB reserved at the end"] = reserved[-1] / 2**30
        assert reserved[-1] <= 1.25 * reserved[4], "the allocator's pools grow with each epoch"
