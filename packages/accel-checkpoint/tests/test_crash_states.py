"""What a power cut can leave on the disk, at every moment of three saves.

The saves run on a real folder, and each effect is noted by the inode that it changes. A crash keeps what was flushed,
and any part of the rest: names that were given or taken, and content in full, half, as zeros, or not at all.
"""

import itertools
import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_checkpoint import (
    CheckpointError,
    Manifest,
    StagedCheckpoint,
    TensorFile,
    collect,
    is_whole,
    load_checkpoint_in_model,
    read_manifest,
    recover,
    save_weights,
    verify,
)
from accel_checkpoint import retention as names
from accel_checkpoint.filesystem import FileDigest, Filesystem
from suite.soak import in_soak
from torch import nn

ROOT = 0
#: parts of what is not durable that are tried at one moment
MOST = 24


@dataclass(frozen=True)
class Effect:
    """Names that are set or, with None, taken in folders, and durable when all of these are flushed; or content."""

    names: tuple[tuple[int, str, int | None], ...] = ()
    file: int = ROOT
    content: bytes = b""

    @property
    def homes(self) -> set[int]:
        return {folder for folder, _, _ in self.names} or {self.file}


Event = Effect | int  # a flush of that inode


@dataclass
class Disk:
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytes] = field(default_factory=dict)

    def apply(self, effect: Effect) -> None:
        for folder, name, inode in effect.names:
            entries = self.folders.setdefault(folder, {})
            if inode is None:
                entries.pop(name, None)
            else:
                entries[name] = inode
        if not effect.names:
            self.files[effect.file] = effect.content

    def tree(self, inode: int = ROOT) -> dict[str, Any]:
        return {
            name: self.tree(one) if one in self.folders else self.files.get(one, b"")
            for name, one in self.folders[inode].items()
        }


class Recorder(Filesystem):
    """The real filesystem, on a folder; what it does is in `log`, with flushes as os.fsync sees them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.log, self.disk = root, list[Event](), Disk()
        self.fresh = itertools.count(1)
        #: flushes of this save, and the one of each but the first save that is left out
        self.flushes, self.left_out = list[str](), -1
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _place(self, path: Path) -> tuple[int, str]:
        inode = ROOT
        for part in path.parent.relative_to(self.root).parts:
            inode = self.disk.folders[inode][part]
        return inode, path.name

    def _inode(self, path: Path) -> int:
        if path == self.root:
            return ROOT
        folder, name = self._place(path)
        return self.disk.folders[folder][name]

    def _note(self, effect: Effect) -> None:
        self.disk.apply(effect)
        self.log.append(effect)

    def _made(self, path: Path) -> None:
        folder, name = self._place(path)
        inode = next(self.fresh)
        self.disk.files[inode] = b""
        self._note(Effect(names=((folder, name, inode),)))
        self._note(Effect(file=inode, content=path.read_bytes()))

    def _fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path != self.root and path.name not in self.disk.folders[self._place(path)[0]]:
            self._made(path)
        if len(self.flushes) != self.left_out:
            self.log.append(self._inode(path))
        self.flushes.append("folder" if path.is_dir() else path.name)

    def by_hook(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self._made(path)

    def make_folder(self, path: Path) -> None:
        for one in reversed([one for one in (path, *path.parents) if not one.exists()]):
            inode = next(self.fresh)
            self.disk.folders[inode] = {}
            self._note(Effect(names=((*self._place(one), inode),)))
        super().make_folder(path)

    def write(self, path: Path, content: Iterable[memoryview | bytes]) -> FileDigest:
        written = super().write(path, content)
        if path.name not in self.disk.folders[self._place(path)[0]]:
            self._made(path)
        return written

    def link(self, path: Path, source: Path) -> bool:
        linked = super().link(path, source)
        self._note(Effect(names=((*self._place(path), self._inode(source)),)))
        return linked

    def rename(self, path: Path, to: Path) -> None:
        super().rename(path, to)
        self._note(Effect(names=((*self._place(to), self._inode(path)), (*self._place(path), None))))

    def remove(self, path: Path) -> None:
        for folder, folders, files in os.walk(path, topdown=False):
            for one in files + folders:
                self._note(Effect(names=((*self._place(Path(folder, one)), None),)))
        super().remove(path)
        self._note(Effect(names=((*self._place(path), None),)))


def tensor(number: int) -> dict[str, torch.Tensor]:
    return {"x": torch.full((5,), float(number))}


def saves(filesystem: Recorder, target: Callable[[int], Path], limit: int | None, left_out: int) -> Iterator[None]:
    """Three saves, one by one; the second file is that of the checkpoint before, as frozen weights are."""
    before: tuple[Path, Manifest] | None = None
    for number in range(3):
        filesystem.flushes, filesystem.left_out = [], left_out if number else -1
        folder = target(number)
        collect(folder.parent, filesystem)
        stage = StagedCheckpoint(folder, filesystem)
        stage.write_tensors("moving.safetensors", tensor(number))
        if before is None or not stage.link("fixed", before[0] / "fixed", before[1].files["fixed"]):
            stage.write("fixed", [b"frozen"])
        filesystem.make_folder(stage.path / "hook")
        filesystem.by_hook(stage.path / "hook" / "own.json", b'{"number": %d}' % number)
        stage.adopt()
        manifest = Manifest({"number": number}, stage.files)
        stage.seal(manifest)
        stage.commit()
        before = folder, manifest
        yield
        if limit is not None:
            names.retain(folder.parent, limit, filesystem)


def kept(events: list[Event]) -> tuple[list[Effect], list[int]]:
    """All effects, and which of them are not durable yet."""
    effects: list[Effect] = []
    waiting: dict[int, set[int]] = {}
    for event in events:
        if isinstance(event, Effect):
            waiting[len(effects)] = event.homes
            effects.append(event)
        else:
            for homes in waiting.values():
                homes.discard(event)
    return effects, [place for place, homes in waiting.items() if homes]


def crashes(log: list[Event], dice: random.Random) -> Iterator[tuple[int, dict[str, Any]]]:
    """What can be on the disk, and how many events had happened."""
    for moment in range(len(log) + 1):
        effects, loose = kept(log[:moment])
        some = [0, (1 << len(loose)) - 1]
        some += (
            range(1 << len(loose)) if 1 << len(loose) <= MOST else [dice.getrandbits(len(loose)) for _ in range(MOST)]
        )
        for kind in range(4) if any(not effects[one].names for one in loose) else [0]:
            for chosen in dict.fromkeys(some):
                dropped = {place for bit, place in enumerate(loose) if chosen >> bit & 1}
                disk = Disk()
                for place, effect in enumerate(effects):
                    if place not in dropped:
                        disk.apply(effect)
                    elif not effect.names:
                        length = len(effect.content)
                        torn = [b"", effect.content[: length // 2], bytes(length), effect.content][kind]
                        disk.apply(Effect(file=effect.file, content=torn))
                yield moment, disk.tree()


def build(tree: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, one in tree.items():
        if isinstance(one, dict):
            build(one, folder / name)
        else:
            (folder / name).write_bytes(one)


def found(folder: Path, single: bool) -> int | str:
    """The number of the newest checkpoint after the real recovery, -1 without one, or what is wrong with it."""
    recover(folder / "last") if single else collect(folder)
    chosen = [folder / "last"] if single else [path for _, path in names.list_checkpoints(folder)]
    number = -1
    for path in filter(is_whole, chosen):
        manifest = read_manifest(path)
        if lines := verify(path, manifest).problems:
            return "; ".join(lines)
        number = manifest.about["number"]
        own = json.loads((path / "hook/own.json").read_bytes())["number"]
        if not (TensorFile(path / "moving.safetensors")["x"] == number).all() or own != number:
            return f"a mixture in {path.name}"
    return number


def recorded(
    where: Path, monkeypatch: pytest.MonkeyPatch, target: str, limit: int | None, left_out: int = -1
) -> tuple[list[Event], list[int], list[str]]:
    """The events, how many there were at the end of each save, and the flushes of the last."""
    with monkeypatch.context() as patched:
        filesystem = Recorder(where, patched)
        ends = [
            len(filesystem.log)
            for _ in saves(filesystem, lambda number: where / target.format(number), limit, left_out)
        ]
    return filesystem.log, ends, filesystem.flushes


def verdicts(where: Path, log: list[Event], ends: list[int], folder: str, single: bool) -> Iterator[tuple[int, str]]:
    """For each state its moment, and what is wrong with it, or nothing."""
    known: dict[str, int | str] = {}
    for moment, tree in crashes(log, random.Random(5)):
        key = repr(tree)
        if key not in known:
            build(tree, where)
            known[key] = found(where / folder, single)
            shutil.rmtree(where)
        number = known[key]
        acknowledged = sum(end <= moment for end in ends) - 1
        fine = isinstance(number, int) and number in (acknowledged, acknowledged + 1)
        yield moment, "" if fine else f"after event {moment}: {number!r}, and {acknowledged} was acknowledged"


CASES = {
    "numbered, one kept": ("checkpoint_{}", 1),
    "numbered, three kept": ("checkpoint_{}", 3),
    "one name": ("last", None),
}
TRIED = ["numbered, one kept", "one name", *in_soak("numbered, three kept")]


@pytest.mark.parametrize("case", TRIED)
def test_no_power_cut_takes_an_acknowledged_checkpoint_or_mixes_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Fault 4."""
    target, limit = CASES[case]
    (tmp_path / "disk").mkdir()
    log, ends, _ = recorded(tmp_path / "disk", monkeypatch, target, limit)
    states = list(verdicts(tmp_path / "state", log, ends, "", limit is None))
    assert [what for _, what in states if what] == []
    assert len(states) > 1000


@pytest.mark.parametrize("case", TRIED)
def test_every_flush_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """This also tests the test. Only that between two renames in one folder may be spare."""
    target, limit = CASES[case]
    (tmp_path / "whole").mkdir()
    flushes = recorded(tmp_path / "whole", monkeypatch, target, limit)[2]
    spare = []
    for place, what in enumerate(flushes):
        (tmp_path / str(place)).mkdir()
        log, ends, _ = recorded(tmp_path / str(place), monkeypatch, target, limit, left_out=place)
        states = verdicts(tmp_path / "state", log, ends, "", limit is None)
        if not any(wrong for _, wrong in states):
            spare.append(f"{place}: {what}")
    assert len(spare) <= (limit is None), spare
    assert len(flushes) >= 6


def test_the_folders_above_the_first_checkpoint_are_as_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    log, ends, _ = recorded(tmp_path / "disk", monkeypatch, "run/checkpoints/checkpoint_{}", 3)
    states = verdicts(tmp_path / "state", log, ends, "run/checkpoints", False)
    assert [what for _, what in states if what] == []


def weights_in(folder: Path) -> set[float]:
    """The numbers of the weights that can be loaded from the folder; none if they are refused."""
    model = nn.Module()
    for name in "ab":
        model.register_buffer(name, torch.zeros(5))
    try:
        load_checkpoint_in_model(model, folder, strict=True)
    except CheckpointError:
        return set()
    return {number for tensor in model.state_dict().values() for number in tensor.tolist()}


@pytest.mark.parametrize("sizes", [(20, 20, 20), (40, 40, 40), (20, 40, 20)], ids=["shards", "a file", "both"])
def test_no_power_cut_mixes_the_weights_of_two_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    """Rule 14: of files in a folder that is there already, among others."""
    (tmp_path / "disk").mkdir()
    with monkeypatch.context() as patched:
        filesystem = Recorder(tmp_path / "disk", patched)
        patched.setattr("accel_checkpoint.atomic_write.Filesystem", lambda: filesystem)
        patched.setattr(Path, "unlink", lambda path, missing_ok=False: filesystem.remove(path) if path.exists() else 0)
        patched.setattr(Filesystem, "remove", lambda self, path: os.unlink(path))
        ends = [0]
        for number, size in enumerate(sizes):
            state = {"a": torch.full((5,), float(number)), "b": torch.full((5,), float(number))}
            save_weights(state, tmp_path / "disk", max_shard_size=size)
            ends.append(len(filesystem.log))
    seen = set[str]()
    for moment, tree in crashes(filesystem.log, random.Random(5)):
        if repr(tree) in seen:
            continue
        seen.add(repr(tree))
        build(tree, tmp_path / "state")
        loaded = weights_in(tmp_path / "state")
        shutil.rmtree(tmp_path / "state")
        acknowledged = sum(end <= moment for end in ends) - 2
        assert loaded in ({float(acknowledged)}, {float(acknowledged + 1)}, set()), (moment, tree.keys())
        may_refuse = moment not in ends[1:] and (20 in sizes or acknowledged < 0)
        assert loaded or may_refuse, "an acknowledged save is lost"
    assert len(seen) > 10
