"""Find what is wrong with a job, in the notes of its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from accel_rehearse.hardware import Hardware
from accel_rehearse.sizes import size_of

Notes = dict[str, Any]
#: the part of a device's memory that torch and the driver leave to tensors
USABLE = 0.95


def mistakes_of(notes: Sequence[Notes], size: int, hardware: Hardware) -> list[dict[str, str]]:
    """Return what is wrong, each with the line of the script and with what would help.

    Args:
        notes: Notes of the ranks.
        size: Number of ranks of the job.
        hardware: The device of a rank.
    """
    found = [
        *(mistake for one in notes for mistake in one["mistakes"]),
        *_unlike(notes),
        *_too_large(notes, size, hardware),
        *_wrong_length(notes[0]),
    ]
    unique = {(what, line): remedy for what, line, remedy in found}
    return [{"what": what, "line": line, "remedy": remedy} for (what, line), remedy in unique.items()]


def _too_large(notes: Sequence[Notes], size: int, hardware: Hardware) -> Iterator[Sequence[str]]:
    worst = max(notes, key=lambda one: one["peak_bytes"])
    usable = USABLE * (hardware.memory or float("inf"))
    if worst["peak_bytes"] <= usable:
        return
    kinds, parts = worst["peak_by_kind"], worst["whole_bytes"]
    held = sum(worst[name] for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"))
    shared = parts["parameters"] * held / max(worst["parameters_bytes"], 1) / size
    ways = []
    if held > 1.5 * shared:
        ways.append(f"sharding over all ranks (--use_fsdp) saves {size_of(held - shared)}")
    if kinds["activations"] > 0.2 * usable:
        ways.append(
            f"of {size_of(kinds['activations'])} of activations, half the batch with twice the accumulation saves"
            " about a half, and recomputation (activation_checkpointing) most"
        )
    at = worst["peak_at"]
    yield (
        f"rank {worst['rank']} takes {size_of(worst['peak_bytes'])} in the {at['phase']} of"
        f" {at['module'] or 'the script'}, and its device has {size_of(usable)} for tensors",
        worst["lines"].get("prepare", ""),
        "; ".join(ways) or "more ranks, or devices with more memory",
    )


def _wrong_length(one: Notes) -> Iterator[Sequence[str]]:
    loop, lines = one["loop"], one["lines"]
    steps, epochs, end = loop["steps_per_epoch"], loop["epochs"], loop["schedule_ends_at_step"]
    if steps and epochs and end and abs(end - steps * epochs) > epochs:
        yield (
            f"the schedule ends at step {end}, and training has {steps * epochs} steps ({epochs} epochs of {steps})",
            lines.get("schedule", ""),
            f"make it {round(steps * epochs * loop['advances'])} long: a step advances it by {loop['advances']:g}",
        )


def _unlike(notes: Sequence[Notes]) -> Iterator[Sequence[str]]:
    first = notes[0]
    for other in notes[1:]:
        for name, words in (("models", "models"), ("batches", "numbers of batches in an epoch")):
            if first[name] != other[name]:
                yield (
                    f"ranks {first['rank']} and {other['rank']} have unlike {words}",
                    first["lines"].get("prepare", ""),
                    "make them in the same way on each rank",
                )
        for mine, theirs in zip(first["calls"], other["calls"], strict=False):
            if mine[0] != theirs[0]:
                yield (
                    f"ranks call different exchanges: rank {first['rank']} calls {mine[0]}, rank {other['rank']} calls"
                    f" {theirs[0]} at {theirs[1]}",
                    mine[1] or theirs[1],
                    "call it on every rank, outside of conditions on the rank",
                )
                break
