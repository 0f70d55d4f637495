"""Checkpoints that somebody made to do harm, or that a disk has damaged, are refused by name, and nothing changes."""

import json
import os
import pickle
import random
import socket
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_checkpoint import CheckpointError, TensorFile, decode, encode, read_manifest, verify
from xxhash import xxh3_128

MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.safetensors", "manifest.json"
Attack = Callable[[Path], Any]
Trained = Callable[[], tuple[Any, Any, Any, Any]]


def reseal(folder: Path, edit: Callable[[dict[str, Any]], Any] = lambda body: None) -> None:
    """Gives all files that are there the hashes that they have, and the manifest its own."""
    body = json.loads((folder / MANIFEST).read_bytes().splitlines()[0])
    for name in body["files"]:
        content = (folder / name).read_bytes()
        body["files"][name] = {"size": len(content), "xxh3": xxh3_128(content).hexdigest()}
    edit(body)
    text = json.dumps(body).encode()
    (folder / MANIFEST).write_bytes(text + b"\n" + sha256(text).hexdigest().encode() + b"\n")


class Gadget:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def gadgets(marker: Path) -> dict[str, Any]:
    words = f"open({str(marker)!r}, 'w').close()"
    return {
        "system": Gadget(os.system, f"touch {marker}"),
        "eval": Gadget(eval, words),
        "exec": Gadget(exec, words),
        "touch": Gadget(Path.touch, marker),
        "mkdir": Gadget(os.mkdir, str(marker)),
    }


def pickled(name: str, kind: str) -> Attack:
    def put(folder: Path) -> None:
        gadget = gadgets(folder.parent / "executed")[kind]
        if name == MANIFEST:
            text = pickle.dumps(gadget)
            (folder / name).write_bytes(text + b"\n" + sha256(text).hexdigest().encode() + b"\n")
            return
        if kind == "touch":
            torch.save({"x": gadget}, folder / name)
        else:
            (folder / name).write_bytes(pickle.dumps(gadget))
        reseal(folder)

    return put


def named(name: str) -> Attack:
    return lambda folder: reseal(folder, lambda body: body["files"].update({name: body["files"][MODEL]}))


def instead(name: str, make: Callable[[Path], Any]) -> Attack:
    def put(folder: Path) -> None:
        (folder / name).rename(folder.parent / "moved")
        make(folder / name)

    return put


def text(edit: Callable[[bytes], bytes]) -> Attack:
    def put(folder: Path) -> None:
        line = edit((folder / MANIFEST).read_bytes().splitlines()[0])
        (folder / MANIFEST).write_bytes(line + b"\n" + sha256(line).hexdigest().encode() + b"\n")

    return put


def content(name: str, edit: Callable[[bytes], bytes]) -> Attack:
    return lambda folder: (folder / name).write_bytes(edit((folder / name).read_bytes()))


def swapped(folder: Path) -> None:
    (folder / MODEL).rename(folder / "x")
    (folder / OPTIMIZER).rename(folder / MODEL)
    (folder / "x").rename(folder / OPTIMIZER)


def sized(size: Any) -> Attack:
    return lambda folder: reseal(folder, lambda body: body["files"][MODEL].update(size=size))


def bind(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def header_of_4_gb(folder: Path) -> None:
    (folder / MODEL).write_bytes((1 << 32).to_bytes(8, "little") + (folder / MODEL).read_bytes()[8:])
    reseal(folder)


def linked_folder(folder: Path) -> None:
    (folder / "sub").symlink_to(folder.parent)
    named("sub/secret.safetensors")(folder)


Edit = Callable[[dict[str, Any]], Any]


def item(name: str, **changes: Any) -> Edit:
    return lambda body: body["items"][name].update(changes)


def generators(found: Any) -> Edit:
    return lambda body: body["ranks"][0].update(generators=found)


#: what is done, and the name that the refusal has
ATTACKS: dict[str, tuple[Attack, str]] = {
    **{f"{kind} as {name}": (pickled(name, kind), name) for name in (MODEL, OPTIMIZER, STATE, MANIFEST)
       for kind in ("system", "eval", "exec", "touch", "mkdir")},
    **{f"named {name[:20]!r}": (named(name), MANIFEST) for name in (
        "../secret.safetensors", "/etc/passwd", "sub/../../secret.safetensors", "./model.safetensors", "a//b", "", ".",
        "..", "manifest.json", "a\0b", "sub/", "~/x/", "//etc/passwd")},
    **{f"names {name[:20]!r}": (named(name), "checkpoint_0") for name in (
        "no such", "..\\secret.safetensors", "C:\\x", "model.safetensors.", "x" * 300, "\ud800",
        "model.safetensors/x")},
    **{f"{name} is a link": (instead(name, lambda path: path.symlink_to("../moved")), name)
       for name in (MODEL, MANIFEST)},
    **{f"{name} is a pipe": (instead(name, os.mkfifo), name) for name in (OPTIMIZER, MANIFEST)},
    **{f"{name} is a folder": (instead(name, os.mkdir), name) for name in (STATE, MANIFEST)},
    **{f"{name} is a socket": (instead(name, bind), name) for name in (MODEL, MANIFEST)},
    **{f"{name} is a device": (instead(name, lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))), name)
       for name in ((MODEL, MANIFEST) if os.geteuid() == 0 else ())},
    "a link to nothing": (instead(MODEL, lambda path: path.symlink_to("nothing")), MODEL),
    "a link to itself": (instead(MODEL, lambda path: path.symlink_to(path.name)), MODEL),
    "a linked folder": (linked_folder, "sub"),
    "4 GB of header": (header_of_4_gb, MODEL),
    "a name twice": (text(lambda line: line.replace(b'"files":', b'"files":{},"files":')), MANIFEST),
    "NaN": (text(lambda line: line.replace(b'"about":{', b'"about":{"a":NaN,')), MANIFEST),
    "deep": (text(lambda line: b"[" * 500_000 + b"]" * 500_000), MANIFEST),
    "digits": (text(lambda line: line.replace(b'"version":1', b'"version":' + b"9" * 1_000_000)), MANIFEST),
    "newer": (text(lambda line: line.replace(b'"version":1', b'"version":4')), "version 4"),
    **{f"a size of {size!r}": (sized(size), MODEL) for size in (0, 1, 2**62, 10**400)},
    **{f"the size {word!r}": (sized(word), MANIFEST) for word in (-1, True, 1.0, "1", None, [0])},
    "swapped": (swapped, MODEL),
    **{f"{name} {what}": (content(name, edit), name) for name in (MODEL, OPTIMIZER, STATE, MANIFEST) for what, edit in {
        "empty": lambda old: b"", "short": lambda old: old[:-1], "long": lambda old: old + b"\n",
        "half": lambda old: old[: len(old) // 2], "zeroed": lambda old: bytes(len(old))}.items()},
    **{f"{name} missing": (instead(name, lambda path: None), name) for name in (MODEL, OPTIMIZER, STATE, MANIFEST)},
    "400 MB of manifest": (lambda folder: os.truncate(folder / MANIFEST, 400 << 20), MANIFEST),
}  # fmt: skip

#: what has the right hashes and is no checkpoint of this script; only load_state can tell
FORGED: dict[str, tuple[Edit, str]] = {
    "no items": (lambda body: body["items"].clear(), "model"),
    "no optimizer": (lambda body: body["items"].pop("optimizer"), "optimizer"),
    "one item more": (lambda body: body["items"].update(other={}), "other"),
    "no ranks": (lambda body: body["ranks"].clear(), "rank 0"),
    "an empty rank": (lambda body: body["ranks"].__setitem__(0, {}), "rank 0"),
    "generators as a list": (generators(["python", "torch"]), "generators"),
    "generators as numbers": (generators({"python": 1, "torch": 2}), "generators"),
    "a short generator": (
        lambda body: body["ranks"][0]["generators"].update(python={"$tuple": [3, [1], 0]}), "generators"),
    "another tensor": (item("object:Registered", state={"$tensor": "no such"}), "Registered"),
    "another file": (item("object:Registered", file="../secret.safetensors"), "secret"),
    "model elsewhere": (item("model", files=["../secret.safetensors"]), "secret"),
    "a model of numbers": (lambda body: body["items"].update(model=7), "model"),
    "an optimizer of no kind": (
        lambda body: body["items"]["optimizer"].pop("kind"), "optimizer is damaged: the manifest does not say"),
    "an optimizer of numbers": (lambda body: body["items"].update(optimizer=[7]), "optimizer"),
    "another kind": (item("optimizer", kind="SGD"), "AdamW"),
    "a tag": (item("object:Registered", state={"$pickle": "x"}), "pickle"),
    "a dtype that is code": (item("object:Registered", state={"$number": ["(,)f4,i4", ""]}), "Registered"),
    "a bomb": (item("object:Registered", state={"$inline": ["float64", [1 << 40], ""]}), "Registered"),
    "a small bomb": (item("object:Registered", state={"$inline": ["float64", [1 << 30], ""]}), "Registered"),
    "extra state of a model": (item("model", state={"other": 1}), "other"),
    "extra state as a list": (item("model", state=[1]), "model"),
    "entries as a list": (lambda body: body["items"]["optimizer"]["state"].update(state=[1]), "optimizer"),
    "an entry as a number": (
        lambda body: body["items"]["optimizer"]["state"]["state"].update({"model.first.weight": 3}), "optimizer"),
    "a clock of numbers": (lambda body: body["items"]["clock"]["state"].update(window=3), "clock"),
}  # fmt: skip


def seen(folder: Path) -> dict[str, Any]:
    """Names, kinds, sizes and times of everything, which no refusal may change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        found[str(path)] = (about.st_mode, about.st_size, about.st_mtime_ns, about.st_ino)
    return found


def refuse(folder: Path, work: Callable[[], Any], name: str) -> None:
    before = seen(folder.parent)
    with pytest.raises(CheckpointError) as refusal:
        work()
    assert name in str(refusal.value)
    assert seen(folder.parent) == before
    assert not (folder.parent / "executed").exists()


def read(folder: Path) -> None:
    manifest = read_manifest(folder)
    if lines := verify(folder, manifest).problems:
        raise CheckpointError("\n".join(lines))
    for name in manifest.files:
        file = TensorFile(folder / name)
        decode([{"$tensor": one} for one in file.header.tensors], file.__getitem__)


def everything(model: Any, optimizer: Any, registered: Any) -> str:
    state = [model.state_dict(), optimizer.state_dict(), registered.value, random.getstate(), torch.get_rng_state()]
    return json.dumps(encode(state))


def load(folder: Path, name: str, trained: Trained) -> None:
    accelerator, model, optimizer, registered = trained()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    registered.value = {"mine": 1}
    random.random()
    before = everything(model, optimizer, registered)
    refuse(folder, lambda: accelerator.load_state(folder), name)
    assert everything(model, optimizer, registered) == before


def test_the_one_that_all_of_them_are_made_from_is_good(folder: Path, trained: Trained) -> None:
    read(folder)
    accelerator, _, _, registered = trained()
    registered.value = {}
    accelerator.load_state(folder)
    assert registered.value["count"] == 3
    assert registered.value["array"].tolist() == [0, 1, 2]
    reseal(folder, lambda body: body.update({"of a later version": 1}))
    (folder / "custom_checkpoint_0.pkl").write_bytes(pickle.dumps(gadgets(folder.parent / "executed")["system"]))
    accelerator.load_state(folder)
    assert not (folder.parent / "executed").exists()


@pytest.mark.parametrize("by", ["reading", "load_state"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_checkpoint_is_refused_by_name_and_nothing_happens(
    folder: Path, attack: str, by: str, trained: Trained
) -> None:
    """Faults 7 to 10."""
    change, name = ATTACKS[attack]
    change(folder)
    if by == "reading":
        refuse(folder, lambda: read(folder), name)
    else:
        load(folder, name, trained)


@pytest.mark.parametrize("attack", FORGED)
def test_load_state_refuses_what_does_not_fit_with_all_as_it_was(folder: Path, attack: str, trained: Trained) -> None:
    pytest.importorskip("accel")
    edit, name = FORGED[attack]
    reseal(folder, edit)
    load(folder, name, trained)


@pytest.mark.parametrize("kind", ["system", "eval", "exec", "touch", "mkdir"])
def test_a_pickle_in_what_accelerate_wrote_is_not_run(tmp_path: Path, kind: str, trained: Trained) -> None:
    """Fault 10, the importer."""
    accelerator, model, optimizer, registered = trained()
    before, gadget = everything(model, optimizer, registered), gadgets(tmp_path / "executed")[kind]
    for name in ("pytorch_model.bin", "optimizer.bin", "custom_checkpoint_0.pkl", "random_states_0.pkl"):
        (tmp_path / "theirs").mkdir(exist_ok=True)
        torch.save({"x": gadget}, tmp_path / "theirs" / name)
    with pytest.raises(CheckpointError):
        accelerator.load_state(tmp_path / "theirs")
    assert everything(model, optimizer, registered) == before
    assert not (tmp_path / "executed").exists()
