"""What a rank asks, opens, connects, sends and reads against the ranks of a job: counted by stand-ins, no processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

from accel.checkpoint.save_job import RANKS_IN_MANIFEST, SaveRequest
from accel.checkpoint.verification import SharedVerification
from accel_checkpoint import FileDigest, Manifest
from accel_checkpoint.filesystem import file_sizes
from accel_checkpoint.manifest import RANK_STATES, rank_lines
from accel_checkpoint.piece_index import PieceIndex, PieceLayout, index_text
from accel_checkpoint.pieces import Box
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.process_group import FILES_A_RANK, SPARE_FILES
from accel_comm.status_store import StatusStore
from accel_comm.transports import peer_errors
from accel_comm.transports.agreement import BLOCK
from accel_comm.transports.binomial_tree import BinomialTree
from accel_comm.transports.peer_errors import PeerErrors
from accel_state import Topology
from accel_state.rendezvous import MESH_RANKS
from accel_state.store_exchange import StoreExchange
from simulated_ranks import CountingStore

from scale.curve import Curve

#: the sizes of the table
SIZES = (2, 16, 256, 4096)
#: ranks of a machine, tensors of the model and its optimizer, rows of each, and bytes of a rank's random numbers
MATES, TENSORS, ROWS, RNG = 8, 300, 8192, 18_000
#: counts that grow with the ranks, each with the reason
NAMED = {
    "open files that rank 0 may need": "it serves the store to all: two connections of each rank, and one of gloo",
    "files of a checkpoint, which the main process scans": "each rank writes its part",
    "KB of the manifest, which each rank reads": "it has the hash of each part",
    "KB that a rank hears in a round of a save or load": "each may have a problem of its own, which all are told",
    "requests of the main process for the notes of parts": "it waits for all, and writes the digests of their parts",
    "messages of rank 0 for a dispatched batch": "it sends each rank its samples: a warning beyond 64 ranks",
}


def connections(size: int) -> float:
    """Gloo's connections of rank 0: with all ranks, or with its neighbours of trees and rings."""
    return size - 1 if size <= MESH_RANKS else len(BinomialTree(0, size, BLOCK)._children) + 2


def messages(size: int) -> float:
    """Messages of rank 0 in one agreement, which is all that is exchanged of equal datasets."""
    return 2 * len(BinomialTree(0, size, BLOCK)._children)


def loss(size: int) -> float:
    """Requests of a rank that has lost another."""
    store = CountingStore()
    stores = []
    for rank in range(size):
        with patch("accel_comm.status_store.own_host", lambda rank=rank: f"machine {rank // MATES}"):
            stores.append(StatusStore(store, rank))
    for other in stores[MATES:]:
        other.end("reduce")
    before = store.requests
    with patch.object(peer_errors, "CLOSES_S", 0.0):
        PeerErrors(0, FlightRecorder(), stores[0]).error("lost")
    return store.requests - before


def index(size: int) -> PieceIndex:
    """The index of a model whose tensors are all divided over all ranks."""
    layout = PieceLayout("F32", (ROWS, 4), (("dp_shard", 0),), 0)
    whole = PieceLayout("F32", (), (), 0)
    layouts = {f"model.layers.{number}.weight": layout for number in range(TENSORS)}
    return PieceIndex({"dp_replicate": 1, "dp_shard": size, "tp": 1}, {**layouts, "step": whole})


def opened(size: int, ranks: int) -> float:
    """Parts that the last of some ranks opens of a checkpoint that so many have written."""
    pieces, rows = index(size), ROWS // ranks
    wanted = Box((ROWS - rows, 0), (rows, 4))
    boxes = dict.fromkeys(pieces.layouts, wanted) | {"step": Box((), ())}
    return len({part for name, box in boxes.items() for part, _ in pieces.overlapping(name, box)})


def said(size: int) -> float:
    """Thousands of bytes of what all ranks say at the beginning of a save."""
    folder = "/shared/runs/2026-11-26/checkpoints/checkpoint_12"
    request = {"request": asdict(SaveRequest(0, [folder, folder], folder)), "problems": [], "tag": "0" * 17}
    return size * len(json.dumps(request | {"rng_bytes": RNG})) / 1000


def notes(size: int) -> float:
    """Requests of the main process that reads a note of each rank, if all are there."""
    store = CountingStore()
    stores = [StatusStore(store, rank) for rank in range(size)]
    for other in stores[1:]:
        other.post(f"parts/{other.rank}", [{}])
    stores[0].remember_all()
    before = store.requests
    StoreExchange(stores[0], FlightRecorder()).exchange_notes("parts", range(size), [{}])
    return store.requests - before


def manifest(size: int) -> Manifest:
    """The manifest of a sharded checkpoint, with random numbers of all ranks."""
    parts = {file: [f"{file}.rank{rank:05d}.safetensors" for rank in range(size)] for file in ("model", "optimizer")}
    files = {part: FileDigest(2**30 // size, "0" * 32) for names in parts.values() for part in names}
    ranks = [{"generators": "0" * RNG}] * size
    if size > RANKS_IN_MANIFEST:
        files[RANK_STATES] = FileDigest(len(rank_lines(ranks)), "0" * 32)
        ranks = []
    return Manifest({"world": size}, files, {}, ranks, parts)


def verified(size: int) -> float:
    """Files that a rank verifies of a checkpoint of another number of ranks, on a disk that all share."""
    here = Topology(rank=0, world_size=size, local_rank=0, local_world_size=min(size, MATES))
    shared = SharedVerification(Path(), manifest(size // 2), here, keep=(), own_parts=True)
    return len(shared._share(0))


def looks(size: int) -> float:
    """Requests for single files in a look at whether all files of a checkpoint are there."""
    with tempfile.TemporaryDirectory() as folder:
        for name in manifest(size).parts["model"]:
            (Path(folder) / name).touch()
        return len(file_sizes(Path(folder)))


COUNTS: dict[str, Callable[[int], float]] = {
    "open files that rank 0 may need": lambda size: SPARE_FILES + FILES_A_RANK * size,
    "connections of gloo of a rank": connections,
    "requests of a rank that lost another": loss,
    "parts opened at a load, on as many ranks as wrote them": lambda size: opened(size, size),
    "parts opened at a load, on half as many ranks": lambda size: opened(size, size // 2),
    "KB of the index of pieces": lambda size: len(index_text({"model": index(size)})) / 1000,
    "files verified by a rank, of half as many writers": verified,
    "KB of random numbers that a rank reads": lambda size: RNG * (size if size <= RANKS_IN_MANIFEST else 1) / 1000,
    "files of a checkpoint, which the main process scans": looks,
    "KB of the manifest, which each rank reads": lambda size: len(manifest(size).as_bytes()) / 1000,
    "KB that a rank hears in a round of a save or load": said,
    "requests of the main process for the notes of parts": notes,
    "messages of rank 0 to agree, as on one dataset": messages,
    "messages of rank 0 for a dispatched batch": lambda size: size - 1,
}


def measure(*, quick: bool) -> list[Curve]:
    """One table of all counts, which takes a second."""
    lines = {name: [(size, count(size)) for size in SIZES] for name, count in COUNTS.items()}
    return [Curve("counts", "What a rank asks, opens and reads", "ranks", "of one rank", lines, drawn=False)]
