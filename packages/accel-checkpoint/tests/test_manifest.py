import hashlib
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accel_checkpoint import CheckpointError, Manifest, is_whole, read_manifest, require_whole, verify
from accel_checkpoint.bounded_json import MOST_BYTES
from accel_checkpoint.filesystem import FileDigest
from accel_checkpoint.manifest import MANIFEST, VERSION, is_inside, read_regular
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128

FILES = {"a.safetensors": b"first" * 100, "b.safetensors": b"second", "sub/c.txt": b"", "name with space. ": b"x"}


def described(files: dict[str, bytes]) -> dict[str, FileDigest]:
    return {name: FileDigest(len(content), xxh3_128(content).hexdigest()) for name, content in files.items()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint_0"
    (folder / "sub").mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    manifest = Manifest({"steps": 3}, described(FILES), {"model": {"kind": "model"}}, [{"generators": {}}])
    (folder / MANIFEST).write_bytes(manifest.as_bytes())
    return folder


def sealed(body: Any) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"


def body(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes().splitlines()[0])
    return found


def put(folder: Path, content: bytes) -> None:
    (folder / MANIFEST).write_bytes(content)


def test_what_was_written_is_read(checkpoint: Path) -> None:
    found = read_manifest(checkpoint)
    assert found == Manifest({"steps": 3}, described(FILES), {"model": {"kind": "model"}}, [{"generators": {}}])
    assert found.size == sum(len(content) for content in FILES.values())
    assert verify(checkpoint, found).problems == []
    assert is_whole(checkpoint)
    require_whole(checkpoint, found)


def test_the_file_is_a_line_of_json_and_the_line_of_its_hash() -> None:
    """Other programs can read it: `head -1 manifest.json | sha256sum` less the newline."""
    first, second, rest = Manifest({"words": "a\nb\u2028ü"}, described(FILES)).as_bytes().split(b"\n")
    assert json.loads(first)["about"] == {"words": "a\nb\u2028ü"}
    assert second.decode() == hashlib.sha256(first).hexdigest()
    assert rest == b""


def test_what_a_later_version_adds_is_passed_over(checkpoint: Path) -> None:
    """Fault 39: a newer minor loads."""
    later = body(checkpoint) | {"new": {"$x": 1}}
    later["files"] = {name: one | {"crc32": 7} for name, one in later["files"].items()}
    put(checkpoint, sealed(later))
    assert read_manifest(checkpoint).files == described(FILES)
    assert is_whole(checkpoint)


def test_a_newer_format_is_refused_with_its_number_and_what_to_do(checkpoint: Path) -> None:
    put(checkpoint, sealed(body(checkpoint) | {"version": VERSION + 1}))
    with pytest.raises(
        CheckpointError, match=rf"manifest\.json is of version {VERSION + 1}.* up to {VERSION}; use a newer"
    ):
        read_manifest(checkpoint)
    assert not is_whole(checkpoint)


@pytest.mark.parametrize(
    "version", [-1, 0, True, 1.0, "1", None, 10**4000, "1" * 10_000], ids=lambda one: f"{one!r:.9}"
)
def test_a_version_that_is_none_is_refused_in_words(checkpoint: Path, version: Any) -> None:
    put(checkpoint, sealed(body(checkpoint) | {"version": version}))
    with pytest.raises(CheckpointError, match=r"is of version .{1,60}, and .* reads the versions 1 up to 3") as refusal:
        read_manifest(checkpoint)
    assert ("use a newer one" in str(refusal.value)) == (version == 10**4000)


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda one: one | {"format": "web app"},
    "version as text": lambda one: one | {"version": "1"},
    "version true": lambda one: one | {"version": True},
    "version 1.5": lambda one: one | {"version": 1.5},
    "files as a list": lambda one: one | {"files": list(one["files"])},
    "files as numbers": lambda one: one | {"files": dict.fromkeys(one["files"], 1)},
    "size as text": lambda one: one | {"files": {"x": {"size": "1", "xxh3": ""}}},
    "size true": lambda one: one | {"files": {"x": {"size": True, "xxh3": ""}}},
    "size 1.0": lambda one: one | {"files": {"x": {"size": 1.0, "xxh3": ""}}},
    "size below 0": lambda one: one | {"files": {"x": {"size": -1, "xxh3": ""}}},
    "hash as number": lambda one: one | {"files": {"x": {"size": 1, "xxh3": 1}}},
    "no hash": lambda one: one | {"files": {"x": {"size": 1}}},
    "about as a list": lambda one: one | {"about": []},
    "items as a list": lambda one: one | {"items": []},
    "ranks as a mapping": lambda one: one | {"ranks": {}},
    "a list": lambda one: [one],
    "a number": lambda one: 1,
    "null": lambda one: None,
    "text": lambda one: "format",
} | {f"no {key}": lambda one, key=key: {k: v for k, v in one.items() if k != key} for key in (
    "format", "version", "about", "files", "items", "ranks"
)}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_none_is_refused_by_name_though_its_hash_is_right(checkpoint: Path, name: str) -> None:
    put(checkpoint, sealed(WRONG[name](body(checkpoint))))
    with pytest.raises(CheckpointError, match=r"checkpoint_0/manifest\.json"):
        read_manifest(checkpoint)
    assert not is_whole(checkpoint)


TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "a newline": lambda text: b"\n",
    "two newlines": lambda text: b"\n\n",
    "no hash": lambda text: text.split(b"\n")[0] + b"\n",
    "no last newline": lambda text: text[:-1],
    "a byte more": lambda text: text + b" ",
    "a line more": lambda text: text + b"\n",
    "windows": lambda text: text.replace(b"\n", b"\r\n"),
    "the hash in capitals": lambda text: text[:-66] + text[-66:].upper(),
    "half": lambda text: text[: len(text) // 2],
    "zeros": lambda text: bytes(len(text)),
    "another body": lambda text: text.replace(b'"steps":3', b'"steps":4'),
    "a name twice": lambda text: sealed(b'{"format":"x",' + text.split(b"\n")[0][1:]),
    "a name twice within": lambda text: sealed(text.split(b"\n")[0].replace(b'"steps":3', b'"steps":3,"steps":3')),
    "NaN": lambda text: sealed(text.split(b"\n")[0].replace(b'"steps":3', b'"steps":NaN')),
    "-Infinity": lambda text: sealed(text.split(b"\n")[0].replace(b'"steps":3', b'"steps":-Infinity')),
    "100,000 digits": lambda text: sealed(text.split(b"\n")[0].replace(b'"steps":3', b'"steps":' + b"9" * 100_000)),
    "deep": lambda text: sealed(text.split(b"\n")[0].replace(b":3", b":" + b"[" * 100_000 + b"]" * 100_000)),
    "no utf-8": lambda text: sealed(text.split(b"\n")[0].replace(b'"steps"', b'"\xff\xfe\xfa"')),
    "no JSON": lambda text: sealed(b"(1,)"),
    "a pickle": lambda text: sealed(b"cos\x00system"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_other_text_is_refused_by_name(checkpoint: Path, name: str) -> None:
    put(checkpoint, TEXTS[name]((checkpoint / MANIFEST).read_bytes()))
    with pytest.raises(CheckpointError, match=r"checkpoint_0/manifest\.json"):
        read_manifest(checkpoint)
    assert not is_whole(checkpoint)


def test_a_file_that_is_too_large_is_not_read(checkpoint: Path) -> None:
    os.truncate(checkpoint / MANIFEST, MOST_BYTES + 1)
    with pytest.raises(CheckpointError, match=r"manifest\.json has 96,000,001 bytes"):
        read_manifest(checkpoint)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    for name, words in {"link": "link", "folder": "regular", "pipe": "regular", "none": "missing"}.items():
        with pytest.raises(CheckpointError, match=rf"{name}.*{words}"):
            read_regular(tmp_path / name, 5)
    with pytest.raises(CheckpointError, match="5 bytes"):
        read_regular(tmp_path / "file", 4)


DAMAGES: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "removed": (lambda path: path.unlink(), True),
    "a byte short": (lambda path: os.truncate(path, path.stat().st_size - 1), True),
    "a byte long": (lambda path: os.truncate(path, path.stat().st_size + 1), True),
    "zeroed": (lambda path: path.write_bytes(bytes(path.stat().st_size)), False),
    "a bit turned": (lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]), False),
}


@pytest.mark.parametrize("name", ["a.safetensors", "b.safetensors", "name with space. "])
@pytest.mark.parametrize("kind", DAMAGES)
def test_every_damage_of_every_file_is_found_and_named(checkpoint: Path, kind: str, name: str) -> None:
    """Faults 7, 8. A look at the sizes, which is cheap, finds some of them."""
    manifest = read_manifest(checkpoint)
    change, shows = DAMAGES[kind]
    change(checkpoint / name)
    (line,) = verify(checkpoint, manifest).problems
    assert str(checkpoint / name) in line
    assert verify(checkpoint, manifest, [file for file in FILES if file != name]).problems == []
    assert verify(checkpoint, manifest, [name]).problems == [line]
    assert is_whole(checkpoint) is not shows


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_every_turned_bit_is_found(checkpoint: Path, name: str) -> None:
    """Fault 7: at 200 places of each file."""
    whole, dice = (checkpoint / name).read_bytes(), random.Random(3)
    for _ in range(200 if whole else 0):
        turned = bytearray(whole)
        turned[dice.randrange(len(turned))] ^= 1 << dice.randrange(8)
        (checkpoint / name).write_bytes(turned)
        with pytest.raises(CheckpointError, match=name):
            require_whole(checkpoint, read_manifest(checkpoint))


def test_all_that_is_wrong_is_told_at_once(checkpoint: Path) -> None:
    manifest = read_manifest(checkpoint)
    (checkpoint / "a.safetensors").unlink()
    (checkpoint / "b.safetensors").write_bytes(b"SECOND")
    (checkpoint / "sub/c.txt").write_bytes(b"more")
    with pytest.raises(CheckpointError) as error:
        require_whole(checkpoint, manifest)
    for words in ("a.safetensors is missing", "b.safetensors is damaged", "c.txt has 4 bytes: 0 were written"):
        assert words in str(error.value)


def test_a_folder_on_the_way_that_is_a_link_is_not_followed(checkpoint: Path, tmp_path: Path) -> None:
    manifest = read_manifest(checkpoint)
    (checkpoint / "sub").rename(tmp_path / "elsewhere")
    (checkpoint / "sub").symlink_to(tmp_path / "elsewhere")
    assert verify(checkpoint, manifest).problems == [f"{checkpoint / 'sub'} is a link"]


def test_other_files_do_not_matter(checkpoint: Path) -> None:
    (checkpoint / "notes.txt").write_text("mine")
    (checkpoint / "custom_checkpoint_0.pkl").write_bytes(b"cos\nsystem\n")
    assert is_whole(checkpoint)
    assert verify(checkpoint, read_manifest(checkpoint)).problems == []


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.c", "...", "a..", " ", "\\", "..\\x", "~", "\0", MANIFEST])))
def test_a_name_that_is_taken_stays_in_the_folder(parts: list[str]) -> None:
    name = "/".join(parts)
    inside = os.path.normpath(os.path.join("/folder", name)).startswith("/folder/")
    plain = bool(name) and not {"", ".", ".."} & set(parts) and "\0" not in name and name != MANIFEST
    assert is_inside(name) is plain
    assert inside or not is_inside(name)


@pytest.mark.parametrize("name", ["/etc/passwd", "//x", "x/", "../x", "a/../../x", "", ".", "..", "a\0", "./a", "a//b"])
def test_names_that_lead_out_are_refused(checkpoint: Path, name: str) -> None:
    put(checkpoint, sealed(body(checkpoint) | {"files": {name: {"size": 0, "xxh3": ""}}}))
    with pytest.raises(CheckpointError, match=r"manifest\.json names a file outside"):
        read_manifest(checkpoint)


@pytest.mark.parametrize("name", ["x" * 300, "\ud800", "a/" * 2500 + "a"], ids=["300", "surrogate", "5000"])
def test_names_that_no_disk_has_are_damage_and_no_other_error(checkpoint: Path, name: str) -> None:
    """One such folder among those of a project must not keep the others from being found."""
    put(checkpoint, sealed(body(checkpoint) | {"files": {name: {"size": 0, "xxh3": ""}}}))
    assert not is_whole(checkpoint)
    with pytest.raises(CheckpointError, match="checkpoint_0"):
        require_whole(checkpoint, read_manifest(checkpoint))


def test_a_manifest_takes_no_memory_for_what_it_does_not_hold(checkpoint: Path) -> None:
    tracemalloc.start()
    try:
        read_manifest(checkpoint)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
