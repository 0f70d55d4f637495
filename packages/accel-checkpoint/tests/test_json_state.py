import collections
import copy
import enum
import json
import math
import random
import sys
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from accel_checkpoint import CheckpointError, decode, encode
from accel_checkpoint.tensor_file import NAMES
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

BESIDE = [*NAMES, torch.complex128]
INLINE = [*BESIDE, torch.float8_e8m0fnu, torch.float8_e5m2fnuz]
NUMPY = ["<f2", "<f4", ">f4", "<f8", "<i8", ">i2", "|u1", "|b1", "<c8", "<c16", "<u4"]


def same(one: Any, other: Any) -> bool:
    """Of the same type, and equal to the last bit; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bits(one) == bits(other)
    if isinstance(one, numpy.ndarray | numpy.generic):
        return (one.shape, one.dtype.str, one.tobytes()) == (other.shape, other.dtype.str, other.tobytes())
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(same, one.items(), other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def bits(tensor: torch.Tensor) -> bytes:
    whole = tensor.resolve_conj().resolve_neg().contiguous()
    return bytes(whole.reshape(-1).view(torch.uint8).numpy()) if whole.numel() else b""


def through(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


def beside(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(encode(value, tensors), allow_nan=False)
    assert {one.dtype for one in tensors.values()} <= set(NAMES)
    return decode(json.loads(text), tensors.__getitem__)


@st.composite
def tensor(draw: st.DrawFn, dtypes: list[torch.dtype]) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(dtypes))
    size = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        raw = bytes(one & 1 for one in raw)
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)
    made = flat.reshape(shape)
    return made.transpose(0, -1) if made.dim() > 1 and draw(st.booleans()) else made


@st.composite
def array(draw: Any) -> Any:
    kind = numpy.dtype(draw(st.sampled_from(NUMPY)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * kind.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    flat = numpy.frombuffer(bytes(one & 1 for one in raw) if kind.kind == "b" else raw, dtype=kind)
    return flat.reshape(shape) if shape or draw(st.booleans()) else flat.reshape(-1)[0]


PLAIN = st.none() | st.booleans() | st.integers() | st.integers(-(2**300), 2**300) | st.floats() | st.text(max_size=4)
SIZES = st.lists(st.integers(0, 2**40), max_size=3).map(torch.Size)
KINDS = st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.device("cpu"), torch.device("cuda", 3)])
LEAVES = PLAIN | st.complex_numbers() | st.binary(max_size=4) | SIZES | KINDS | array()
HASHABLE = (PLAIN | st.binary(max_size=2) | st.complex_numbers()).filter(lambda one: one == one)
KEYS = HASHABLE | st.tuples(HASHABLE, HASHABLE) | st.sampled_from(["$float", "$", "", "a.b", "ü"])
COUNTERS = st.dictionaries(st.integers() | st.text(max_size=2), st.integers(), max_size=3).map(Counter)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        mappings = st.dictionaries(KEYS, inner, max_size=3)
        some = st.lists(inner, max_size=3)
        return some | some.map(tuple) | mappings | mappings.map(OrderedDict) | COUNTERS

    return st.recursive(leaves, grown, max_leaves=8)


often = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))


@often
@example({"$float": "nan"})
@example(torch.arange(2, dtype=torch.uint8).view(torch.float8_e8m0fnu))
@given(nested(LEAVES | tensor(INLINE)))
def test_what_goes_in_comes_out_with_tensors_in_the_text(value: Any) -> None:
    assert same(through(value), value)


@often
@example({"$float": "nan"})
@given(nested(LEAVES | tensor(BESIDE)))
def test_what_goes_in_comes_out_with_tensors_beside_it(value: Any) -> None:
    assert same(beside(value), value)


@pytest.mark.parametrize("back", [through, beside])
def test_views_come_out_as_the_numbers_that_they_show(back: Callable[[Any], Any]) -> None:
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    negative = torch.imag(torch.tensor([1 + 2j]).conj())
    assert conjugate.is_conj()
    assert negative.is_neg()
    for view in (conjugate, negative, torch.arange(9.0)[::3], torch.ones(1).expand(4), nn.Parameter(torch.ones(2))):
        assert torch.equal(back(view), view)


def test_tensors_of_one_memory_come_out_equal_and_under_a_name_each() -> None:
    shared = torch.arange(3.0)
    tensors: dict[str, torch.Tensor] = {}
    encoded = encode({"a": {"b": shared}, "a.b": torch.zeros(1), "c": shared}, tensors)
    found = decode(encoded, tensors.__getitem__)
    assert torch.equal(found["a"]["b"], shared)
    assert torch.equal(found["c"], shared)
    assert torch.equal(found["a.b"], torch.zeros(1))
    assert all(one.data_ptr() == shared.data_ptr() for one in (found["a"]["b"], found["c"]))


def test_a_file_of_several_writers_has_room_for_names_that_meet() -> None:
    tensors: dict[str, torch.Tensor] = {}
    first = encode({"a": {"b.c": torch.ones(1)}}, tensors)
    second = encode({"a.b": {"c": torch.zeros(1)}}, tensors)
    assert decode(first, tensors.__getitem__)["a"]["b.c"] == 1
    assert decode(second, tensors.__getitem__)["a.b"]["c"] == 0


class Colour(enum.IntEnum):
    RED = 1


class Mine(torch.Tensor):
    pass


Pair = namedtuple("Pair", "x y")
loop: list[Any] = []
loop += [loop]
twice: list[Any] = []
twice += [twice, twice]
deep: Any = None
for _ in range(66):
    deep = [deep]

REFUSED: dict[str, Any] = {
    "function": lambda: None,
    "set": {1},
    "frozenset": frozenset((1,)),
    "class": dict,
    "module": math,
    "object": object(),
    "enum": Colour.RED,
    "dict": type("D", (dict,), {})(),
    "defaultdict": defaultdict(int),
    "list": type("L", (list,), {})(),
    "str": type("S", (str,), {})("x"),
    "int": type("I", (int,), {})(1),
    "namedtuple": Pair(1, 2),
    "deque": collections.deque(),
    "generator": torch.Generator(),
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.ones(2, device="meta"),
    "subclass": torch.ones(2).as_subclass(Mine),
    "objects": numpy.array([object()]),
    "words": numpy.array(["a"]),
    "records": numpy.zeros(1, dtype=[("a", "f4")]),
    "days": numpy.array(["2020-01-01"], dtype="M8[D]"),
    "masked": numpy.ma.masked_array([1.0, 2.0], mask=[True, False]),
    "itself": loop,
    "deep": deep,
    "digits": 10**5000,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_place_in_a_checkpoint_is_refused_with_its_path(name: str) -> None:
    value = {"good": 1, "outer": [{name: REFUSED[name]}], "more": {"fn": print}}
    with pytest.raises(CheckpointError) as refusal:
        encode(value, {})
    assert f"outer[0].{name}" in str(refusal.value)
    assert "more.fn" in str(refusal.value)


def test_a_dtype_that_no_file_holds_is_refused_before_any_write() -> None:
    with pytest.raises(CheckpointError, match=r"outer\.x"):
        encode({"outer": {"x": torch.zeros(2, dtype=torch.float8_e8m0fnu)}}, {})


@pytest.mark.timeout(60)
def test_what_holds_itself_twice_is_refused_as_quickly() -> None:
    """A walk that only stops at a depth of 64 would take 2**64 steps."""
    with pytest.raises(CheckpointError, match="x"):
        encode({"x": twice})


JUNK: list[Any] = [
    None, True, -1, 2**40, 10**30, 10**400, 1e308, "", "nan", "float32", "qint8", "bits8", "cuda:99999999999",
    "\ud800",
    "(,)f4,i4", "(1,f4", "f4,", "O", ",", "a", "\0", "AAAA", "AAA", "=", "float4_e2m1fn_x2", [], {}, [[]], [-1],
    [2**70],
    {"$float": []}, {"$tensor": []}, {"$tensor": "a", "as": "nonsense"}, {"$size": [10**30]}, {"$map": [[[], 1]]},
    {"$complex": [10**400, 0]}, {"$inline": ["float32", [2**62], ""]}, {"$number": ["(,)f4,i4", ""]}, {"$pickle": "x"},
    {"$array": ["O", [1], {"$bytes": ""}]}, {"$dtype": "nn"}, {"$device": -1}, {"$counter": [[1, "a"]]}, {"$tuple": 3},
]  # fmt: skip
TAGS = "$float $tensor $inline $tuple $size $map $ordered $counter $complex $bytes $dtype $device $array $number $x"
watched: list[str] = []
watching = False


def note(event: str, _: Any) -> None:
    if watching and event in ("exec", "open", "os.system", "subprocess.Popen", "pickle.find_class", "ctypes.dlopen"):
        watched.append(event)


sys.addaudithook(note)


def places(value: Any) -> list[tuple[Any, Any]]:
    inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    found = [(value, key) for key, _ in inner]
    return found + [place for _, child in inner if isinstance(child, dict | list) for place in places(child)]


def mutated(encoded: Any, dice: random.Random) -> Any:
    encoded = copy.deepcopy(encoded)
    for _ in range(dice.randint(1, 3)):
        held, key = dice.choice(places(encoded))
        if isinstance(held, dict) and dice.random() < 0.3:
            held[dice.choice(TAGS.split())] = held.pop(key)
        elif dice.random() < 0.2 and len(held) > 1:
            del held[key]
        else:
            other, there = dice.choice(places(encoded))
            held[key] = copy.deepcopy(other[there] if dice.random() < 0.4 else dice.choice(JUNK))
    return encoded


@pytest.mark.filterwarnings("ignore")  # of numpy and torch, which are asked for odd things
def test_damaged_encodings_give_that_one_error_and_run_nothing() -> None:
    global watching
    value = {
        "floats": [1.5, math.nan, math.inf], "tuple": (1, ("a", b"xy")), "map": {(1, 2): 3, None: torch.Size([2, 3])},
        "ordered": OrderedDict(a=1), "counter": Counter({3: 2}), "complex": 1 + 2j,
        "kinds": [torch.bool, torch.device("cpu")],
        "array": numpy.arange(4.0).reshape(2, 2), "number": numpy.float32(2),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }  # fmt: skip
    tensors = {"t": torch.ones(3), "c": torch.ones(2, 2)}
    encoded = {"inline": encode(value), "t": {"$tensor": "t"}, "c": {"$tensor": "c", "as": "complex64"}}
    dice, errors = random.Random(7), 0
    watching = True
    try:
        for _ in range(2_000):
            damaged = mutated(encoded, dice)
            try:
                decode(damaged, tensors.__getitem__)
            except CheckpointError:
                errors += 1
    finally:
        watching = False
    assert errors > 400
    assert watched == []


def test_no_memory_is_shown_that_nothing_was_written_into() -> None:
    for shape in ([4], [1 << 31]):
        with pytest.raises(CheckpointError):
            decode({"$inline": ["float32", shape, ""]})


NUMBERS = [*(["float32", [2], text] for text in ("AAAAAA", "AAAAAAA=", "AAAAAAAA", "$$$$", 3)), ["nn", [0], ""]]
OTHERS = [{"$number": ["S4", "AAAAAA=="]}, {"$array": ["V4", [1], {"$inline": ["uint8", [4], "AAAAAA=="]}]}]


@pytest.mark.parametrize("encoded", [*({"$inline": number} for number in NUMBERS), *OTHERS], ids=str)
def test_what_encode_does_not_write_is_refused(encoded: Any) -> None:
    with pytest.raises(CheckpointError):
        decode(encoded)
