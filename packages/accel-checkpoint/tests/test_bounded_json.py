"""JSON of others: as much as a large job writes is read, and what would fill the memory is refused before it does."""

import hashlib
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accel_checkpoint import CheckpointError, FileDigest, Manifest, TensorFile, read_manifest, serialize, weight_files
from accel_checkpoint.bounded_json import DEEPEST, MOST_BYTES, MOST_CONTAINERS, MOST_VALUES, parse_json, read_json
from accel_checkpoint.manifest import MANIFEST
from accel_checkpoint.safetensors_header import ALIASES
from accel_checkpoint.stored_tensors import PIECES, StoredTensors
from accel_testing import stretched

#: values that are short, and how many of them a text has
SHORT = {"[]": MOST_CONTAINERS, "{}": MOST_CONTAINERS, '{"a":1}': MOST_CONTAINERS, "[[1]]": MOST_CONTAINERS // 2}
SHORT |= dict.fromkeys(["1", "1.5", '""', "null", '"text"'], MOST_VALUES)


@pytest.fixture
def peak() -> Callable[[Callable[[], Any]], int]:
    """Counts the bytes that a call takes at most, which has to refuse."""

    def taken(call: Callable[[], Any]) -> int:
        tracemalloc.start()
        try:
            with pytest.raises((ValueError, CheckpointError), match=r"more than .* are not read"):
                call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return taken


@pytest.mark.parametrize("value", SHORT)
def test_too_many_values_of_any_kind_are_refused_before_one_is_made(
    value: str, peak: Callable[[Callable[[], Any]], int]
) -> None:
    text = f"[{','.join([value] * (SHORT[value] + 9))}]"
    assert peak(lambda: parse_json(text)) < 1 << 20


def test_an_object_of_too_many_values_is_refused_before_one_is_made(
    peak: Callable[[Callable[[], Any]], int],
) -> None:
    text = "{" + ",".join(f'"{number}":1' for number in range(MOST_VALUES + 9)) + "}"
    assert peak(lambda: parse_json(text)) < 1 << 20


def nested(depth: int, opening: str, closing: str) -> str:
    return opening * depth + "1" + closing * depth


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"$map":[', "]}]")])
def test_what_is_nested_too_deep_is_refused(opening: str, closing: str) -> None:
    levels = sum(map(opening.count, "[{"))
    parse_json(nested(DEEPEST // levels, opening, closing))
    for depth in (DEEPEST // levels + 1, 100_000):
        with pytest.raises(RecursionError):
            parse_json(nested(depth, opening, closing))


def test_a_name_that_comes_twice_is_found_in_time_among_many() -> None:
    names = [*range(200_000), 0]
    begun = time.monotonic()
    with pytest.raises(ValueError, match="it has '0' twice"):
        parse_json("{" + ",".join(f'"{number}":1' for number in names[::-1]) + "}")
    assert time.monotonic() - begun < stretched(10)


def test_every_json_of_others_is_read_with_the_limits(tmp_path: Path) -> None:
    """The index of shards, and what the metadata of a safetensors file has as text."""
    many = f"[{'[],' * MOST_CONTAINERS}[]]"
    (tmp_path / "model.safetensors.index.json").write_text(many)
    with pytest.raises(CheckpointError, match="are not read"):
        weight_files(tmp_path)
    for key in (PIECES, ALIASES):
        (tmp_path / key).write_bytes(b"".join(map(bytes, serialize({}, {key: many}))))
        with pytest.raises(CheckpointError, match="are not read"):
            StoredTensors([TensorFile(tmp_path / key)])
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ValueError, match="96,000,001 bytes"):
        read_json(tmp_path / "large")


def test_a_state_that_no_reader_would_take_is_refused_when_it_is_saved() -> None:
    states: list[Any] = [[[]] * MOST_CONTAINERS, "x" * MOST_BYTES]
    for state in states:
        with pytest.raises(CheckpointError, match=r"too large for a manifest.*give large states as tensors"):
            Manifest(items={"object:Mine": {"state": state}}).as_bytes()


def put(folder: Path, text: bytes) -> None:
    with (folder / MANIFEST).open("wb") as file:
        file.write(text)
        file.write(f"\n{hashlib.sha256(text).hexdigest()}\n".encode())


@pytest.mark.soak(only=True)
@pytest.mark.parametrize("size", [MOST_BYTES - 1000, 100_000_000])
@pytest.mark.parametrize("value", [*SHORT, '"' + "x" * 1000 + '"'])
def test_a_manifest_of_100_mb_is_refused_at_once(
    tmp_path: Path, value: str, size: int, peak: Callable[[Callable[[], Any]], int]
) -> None:
    """It takes half a second; lists took 12 s and 2.8 GB, objects 34 s and 5.6 GB."""
    put(tmp_path, f"[{','.join([value] * (size // (len(value) + 1)))}]".encode())
    if len(value) > 1000 and size < MOST_BYTES:
        with pytest.raises(CheckpointError, match="is not a manifest"):
            read_manifest(tmp_path)
        return
    begun = time.monotonic()
    assert peak(lambda: read_manifest(tmp_path)) < 256 << 20
    assert time.monotonic() - begun < stretched(5)


@pytest.mark.soak(only=True)
def test_the_manifest_of_a_large_job_is_read(tmp_path: Path) -> None:
    """100,000 parameters with their moments, and 2,700 processes with a part and random numbers each."""
    name = "model.decoder.layers.{}.self_attention.query_key_value.weight"
    names = [name.format(number) for number in range(100_000)]
    moments = {
        one: {k: {"$tensor": f"optimizer.state.{one}.{k}"} for k in ("step", "exp_avg", "exp_avg_sq")} for one in names
    }
    ranks = [
        {"generators": {"python": list(range(4 * 10**9, 4 * 10**9 + 625)), "torch": "x" * 6775, "numpy": "x" * 3417}}
    ] * 2700
    parts = {file: [f"{file}.rank{rank:05d}.safetensors" for rank in range(2700)] for file in ("model", "optimizer")}
    files = {part: FileDigest(10**9, "0" * 32) for every in parts.values() for part in every}
    items = {"optimizer": {"kind": "AdamW", "state": {"state": moments, "param_groups": [{"params": names}]}}}
    content = Manifest({}, files, items, ranks, parts).as_bytes()
    assert len(content) > 0.9 * MOST_BYTES
    (tmp_path / MANIFEST).write_bytes(content)
    assert read_manifest(tmp_path).items == json.loads(json.dumps(items))
