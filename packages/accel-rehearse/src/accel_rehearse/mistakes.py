"""Find what is wrong with a job, in the notes of its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from accel_rehearse.hardware import Hardware, size_of

Notes = dict[str, Any]
#: the part of a device's memory that torch and the driver leave to tensors
USABLE = 0.95


def mistakes_of(notes: Sequence[Notes], size: int, hardware: Hardware) -> list[Sequence[str]]:
    """Return what is wrong, each with the line of the script and with what would help.

    Args:
        notes: Notes of the ranks.
        size: Number of ranks of the job.
        hardware: The device of a rank.
    """
    return [
        *(mistake for one in notes for mistake in one["mistakes"]),
        *_unlike(notes),
        *_too_large(notes, size, hardware),
    ]


def place_of(said: Notes) -> str:
    """Return the phase and the module of the peak, in words."""
    return " of ".join(filter(None, said["peak_at"].values()))


def _too_large(notes: Sequence[Notes], size: int, hardware: Hardware) -> Iterator[Sequence[str]]:
    worst = max(notes, key=lambda one: one["said"]["peak_bytes"])
    said = worst["said"]
    usable = USABLE * hardware.memory
    if said["peak_bytes"] > usable:
        held = said["parameters_bytes"] + said["gradients_bytes"] + said["optimizer_bytes"]
        # how much more all ranks together would hold of the same, if they shared it
        whole = worst["whole_bytes"] / max(said["parameters_bytes"], 1)
        half = said["peak_by_kind"]["activations"] / 2
        # of bfloat16 as well
        single = "float16" not in " ".join(said["flops_by_precision"])
        ways = {
            "sharding over all ranks (--use_fsdp)": held * (1 - whole / size),
            "computing in 16 bits (--mixed_precision bf16)": half * single,
            "recomputation (--fsdp_activation_checkpointing true, or of the model)": worst["recomputed_bytes"],
            "half the batch (less with twice the accumulation, which keeps gradients)": half,
        }
        helps = [f"{way} saves up to {size_of(saved)}" for way, saved in ways.items() if saved > 0.05 * usable]
        yield (
            f"rank {worst['rank']} takes {size_of(said['peak_bytes'])} in the {place_of(said)}, and its device has"
            f" {size_of(usable)} for tensors",
            worst["lines"].get("prepare", ""),
            "; ".join(helps) or "devices with more memory, or more ranks if all is sharded",
        )


def _unlike(notes: Sequence[Notes]) -> Iterator[Sequence[str]]:
    first, *others = notes
    for other in others:
        for (mine, line), (theirs, there) in zip(first["calls"], other["calls"], strict=False):
            if mine != theirs:
                yield (
                    f"ranks {first['rank']} and {other['rank']} do different things: {mine}, and {theirs} ({there})",
                    line or there,
                    "exchange outside of conditions on the rank, with equal models and loaders",
                )
                break
