import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import pytest
import torch
from accel_checkpoint import CheckpointError, load_checkpoint_in_model, save_weights, weight_files
from accel_testing import assert_same_numbers
from safetensors.torch import load_file, save_file
from saved_files import model
from suite.toy_models import Mlp
from torch import nn

FORMATS = [(True, "10GB"), (True, 500), (False, "10GB"), (False, 500)]


@final
class Tied(nn.Module):
    """An embedding whose weight is also the head's, or is not."""

    def __init__(self, *, tied: bool, value: float = 0.0) -> None:
        super().__init__()
        self.embed, self.between, self.head = nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6, bias=False)
        for parameter in self.parameters():
            nn.init.constant_(parameter, value)
        if tied:
            self.head.weight = self.embed.weight


def refuses(model: nn.Module, checkpoint: Path, **options: Any) -> str:
    """The text of the refusal, after which the model is as it was."""
    before = {name: (tensor, tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint_in_model(model, checkpoint, **options)
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    for name, (tensor, numbers) in before.items():
        assert after[name] is tensor
        assert torch.equal(tensor, numbers)
    return str(refused.value)


@pytest.mark.parametrize("as_file", [False, True], ids=["folder", "file-or-index"])
@pytest.mark.parametrize(("safe", "size"), FORMATS)
def test_both_formats_load_from_a_folder_a_file_and_an_index(
    tmp_path: Path, device: torch.device, safe: bool, size: Any, as_file: bool
) -> None:
    """Feature rows S88 and S91, decision 6: the tensors end on the device."""
    opens = save_weights(model(1).state_dict(), tmp_path, max_shard_size=size, safe_serialization=safe)
    fresh = model(2)
    weight = fresh.first.weight
    load_checkpoint_in_model(fresh, opens if as_file else str(tmp_path), {"": device}, strict=True)
    assert_same_numbers(fresh.state_dict(), model(1).state_dict(), atol=0)
    assert {tensor.device.type for tensor in fresh.state_dict().values()} == {device.type}
    assert fresh.first.weight is weight or device.type == "xla"  # where a move makes new parameters


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_a_map_to_the_meta_device_is_refused(tmp_path: Path, device: Any) -> None:
    save_weights(model(1).state_dict(), tmp_path)
    fresh = model(2)
    with pytest.raises(ValueError, match="the meta device holds no numbers; give a real one"):
        load_checkpoint_in_model(fresh, tmp_path, device_map={"": device})
    assert fresh.first.weight.device.type == "cpu"


def test_without_a_device_map_the_model_stays_where_it_is(tmp_path: Path, device: torch.device) -> None:
    """Feature row S91."""
    save_weights(model(1).state_dict(), tmp_path)
    fresh = model(2).to(device)
    load_checkpoint_in_model(fresh, tmp_path)
    assert_same_numbers(fresh.state_dict(), model(1).state_dict(), atol=0)
    assert fresh.first.weight.device.type == device.type


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", "torch.bfloat16"])
def test_floating_weights_are_converted_on_request(tmp_path: Path, dtype: Any) -> None:
    """Feature row S91."""
    norm = nn.BatchNorm1d(3)
    save_weights(norm.state_dict(), tmp_path)
    load_checkpoint_in_model(norm, tmp_path, dtype=dtype, strict=True)
    assert norm.weight.dtype == torch.bfloat16
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize("options", [{"dtype": "bfloat61"}, {"dtype": torch.int8}, {"dtype": "nn"}])
def test_a_dtype_that_is_none_is_refused_before_anything_is_changed(tmp_path: Path, options: Any) -> None:
    save_weights(model(1).state_dict(), tmp_path)
    fresh = model(2).to("meta")
    with pytest.raises(ValueError, match=r"expected a floating-point dtype such as torch\.bfloat16 or 'bfloat16'"):
        load_checkpoint_in_model(fresh, tmp_path, {"": "cpu"}, **options)
    assert fresh.first.weight.is_meta


def test_a_map_of_several_devices_is_refused(tmp_path: Path) -> None:
    save_weights(model(1).state_dict(), tmp_path)
    fresh = model(2)
    with pytest.raises(ValueError, match=r"only the whole model on one device, {'': device}"):
        load_checkpoint_in_model(fresh, tmp_path, {"first": "cpu", "second": "cpu"})
    assert_same_numbers(fresh.state_dict(), model(2).state_dict(), atol=0)


@pytest.mark.parametrize(("safe", "size"), [(True, "10GB"), (True, 100), (False, "10GB"), (False, 100)])
@pytest.mark.parametrize("tied", [True, False], ids=["into-tied", "into-untied"])
def test_tied_weights_are_stored_once_and_load_into_tied_and_untied_models(
    tmp_path: Path, safe: bool, size: Any, tied: bool
) -> None:
    """Feature rows S88 and S91, reference 2.9."""
    save_weights(Tied(tied=True, value=3.0).state_dict(), tmp_path, max_shard_size=size, safe_serialization=safe)
    if safe:
        stored = [name for path in weight_files(tmp_path) for name in load_file(path)]
        assert sorted(stored) == ["between.bias", "between.weight", "embed.weight"]
    fresh = Tied(tied=tied)
    load_checkpoint_in_model(fresh, tmp_path, strict=True)
    assert (fresh.head.weight is fresh.embed.weight) is tied
    for tensor in fresh.state_dict().values():
        assert torch.equal(tensor, torch.full_like(tensor, 3.0))


def test_weights_tied_in_the_model_only_are_not_missing(tmp_path: Path) -> None:
    """Feature row S91: other programs store the first name of tied weights, and no alias."""
    state = Tied(tied=True, value=3.0).state_dict()
    save_file({name: tensor for name, tensor in state.items() if name != "head.weight"}, tmp_path / "model.safetensors")
    fresh = Tied(tied=True)
    load_checkpoint_in_model(fresh, tmp_path, strict=True)
    assert torch.equal(fresh.head.weight, torch.full((6, 4), 3.0))
    text = refuses(Tied(tied=False), tmp_path, strict=True)
    assert text.endswith("do not fit the model:\n  missing from the files: head.weight")


def test_names_that_do_not_match_are_a_warning_and_the_rest_is_loaded(tmp_path: Path) -> None:
    """Reference 2.13."""
    state = model(1).state_dict()
    save_weights({"first.weight": state["first.weight"], "extra": torch.ones(1), "more": torch.ones(1)}, tmp_path)
    fresh = model(2)
    with pytest.warns(UserWarning, match="not in the model") as warned:
        load_checkpoint_in_model(fresh, tmp_path)
    assert [str(one.message) for one in warned] == [
        f"weights in {tmp_path}: missing from the files: first.bias, second.weight, second.bias;"
        " not in the model: extra, more"
    ]
    assert warned[0].filename == __file__
    expected = {**model(2).state_dict(), "first.weight": state["first.weight"]}
    assert_same_numbers(fresh.state_dict(), expected, atol=0)


def test_names_that_do_not_match_are_an_error_when_strict(tmp_path: Path) -> None:
    save_weights({"first.weight": torch.ones(24, 8), "extra": torch.ones(1)}, tmp_path)
    assert refuses(model(), tmp_path, strict=True) == (
        f"the weights in {tmp_path} do not fit the model:\n"
        "  missing from the files: first.bias, second.weight, second.bias\n"
        "  not in the model: extra"
    )


@pytest.mark.parametrize(("safe", "size"), FORMATS)
def test_all_wrong_shapes_are_listed_and_nothing_is_changed(tmp_path: Path, safe: bool, size: Any) -> None:
    save_weights(Mlp(8, 23, 5).state_dict(), tmp_path, max_shard_size=size, safe_serialization=safe)
    text = refuses(model(), tmp_path, device_map={"": "cpu"}, dtype="float64")
    assert text.splitlines()[0] == f"the weights in {tmp_path} do not fit the model:"
    assert sorted(text.splitlines()[1:]) == [
        "  another shape: first.bias: [23] in the file, [24] in the model",
        "  another shape: first.weight: [23, 8] in the file, [24, 8] in the model",
        "  another shape: second.weight: [5, 23] in the file, [5, 24] in the model",
    ]


@final
class Gadget:
    """Pickled code that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("shape", ["torch", "plain"])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, shape: str) -> None:
    trap, file = tmp_path / "trap", tmp_path / "pytorch_model.bin"
    if shape == "torch":
        torch.save({**model(1).state_dict(), "gadget": Gadget(trap)}, file)
    else:
        file.write_bytes(pickle.dumps(Gadget(trap)))
    assert refuses(model(), tmp_path).startswith(f"{file} cannot be read as plain weights: ")
    assert not trap.exists()
    if shape == "torch":
        torch.load(file, weights_only=False)  # the trap works
        assert trap.exists()


@pytest.mark.parametrize("content", [[torch.ones(1)], {"w": torch.ones(1), "epoch": 3}, torch.ones(1)])
def test_a_pickle_of_anything_but_weights_is_refused(tmp_path: Path, content: object) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save(content, file)
    assert refuses(model(), file) == f"{file} holds more than weights: expected a mapping of names to tensors"


@pytest.mark.parametrize("name", ["../outside.safetensors", ".", "/etc/passwd", "sub/model.safetensors", 3])
def test_an_index_that_names_files_outside_its_folder_is_refused(tmp_path: Path, name: Any) -> None:
    folder = tmp_path / "checkpoint"
    save_weights(model(1).state_dict(), folder, max_shard_size=500)
    save_weights(model(1).state_dict(), tmp_path).rename(tmp_path / "outside.safetensors")
    index = folder / "model.safetensors.index.json"
    shown = "3" if name == 3 else name
    index.write_text('{"weight_map": {"a": ' + (shown if name == 3 else f'"{name}"') + "}}")
    assert refuses(model(), folder) == f"{index} names files outside its folder: {shown}"


@pytest.mark.parametrize("name", ["..", "", "model-00009-of-00009.safetensors"])
def test_an_index_that_names_files_that_are_missing_is_refused(tmp_path: Path, name: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "' + name + '"}}')
    assert refuses(model(), index) == f"{index} names files that are missing: {name}"


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", '{"weight_map": ["a"]}', '{"weight_map": {"a": {}}}', "[" * 10**5, b"\xff"])  # fmt: skip # noqa: E501
def test_an_index_that_is_none_is_refused(tmp_path: Path, content: str | bytes) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert refuses(model(), tmp_path).startswith(f"{index} is not an index of weights: ")


def test_an_index_of_nothing_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {}}')
    assert refuses(model(), tmp_path) == f"{index} names no files"


@pytest.mark.parametrize("left", [0, 4, 100, -1])
@pytest.mark.parametrize("shard", [1, 3])
def test_a_truncated_shard_is_refused_and_nothing_is_changed(tmp_path: Path, left: int, shard: int) -> None:
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=500)
    file = tmp_path / f"model-{shard:05d}-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    assert refuses(model(), tmp_path).startswith(f"{file} is damaged, or not a safetensors file: ")


@pytest.mark.parametrize("left", [0, 100, -1])
def test_a_truncated_pickle_is_refused_and_nothing_is_changed(tmp_path: Path, left: int) -> None:
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=500, safe_serialization=False)
    file = tmp_path / "pytorch_model-00003-of-00003.bin"
    file.write_bytes(file.read_bytes()[:left])
    assert refuses(model(), tmp_path).startswith(f"{file} cannot be read as plain weights: ")


@pytest.mark.parametrize("aliases", ["{", '{"head": "gone"}', '["w"]', '{"head": ["w"]}', "3", "[" * 10**5])
def test_metadata_with_aliases_that_are_none_is_refused(tmp_path: Path, aliases: str) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(1)}, file, metadata={"accel.aliases": aliases})
    assert refuses(model(), tmp_path).startswith(f"{file} is damaged: its metadata 'accel.aliases' is no mapping")


def test_a_folder_without_weights_is_refused_with_what_is_looked_for(tmp_path: Path) -> None:
    assert refuses(model(), tmp_path) == (
        f"no weights in {tmp_path}: expected one of model.safetensors, model.safetensors.index.json,"
        " pytorch_model.bin, pytorch_model.bin.index.json"
    )


def test_a_path_to_nothing_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "model.safetensors"
    assert refuses(model(), missing) == f"no weights at {missing}: no such file or folder"


def test_a_pipe_or_a_folder_instead_of_a_file_is_refused_at_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pipe = tmp_path / "model.safetensors"
    os.mkfifo(pipe)
    # with a writer that sends nothing, whoever opens the pipe fails at once instead of waiting for one
    writer = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    request.addfinalizer(lambda: os.close(writer))
    (tmp_path / "pytorch_model.bin").mkdir()
    assert refuses(model(), pipe) == f"no weights at {pipe}: it is neither a file nor a folder"
    assert refuses(model(), tmp_path).startswith(f"no weights in {tmp_path}: expected one of ")
    assert refuses(model(), tmp_path / "pytorch_model.bin").startswith("no weights in ")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model.safetensors"}}')
    assert refuses(model(), index) == f"{index} names files that are missing: model.safetensors"


def test_code_in_a_pickle_of_torchs_old_format_is_not_run(tmp_path: Path) -> None:
    trap, file = tmp_path / "trap", tmp_path / "pytorch_model.bin"
    torch.save({"gadget": Gadget(trap)}, file, _use_new_zipfile_serialization=False)
    assert refuses(model(), tmp_path).startswith(f"{file} cannot be read as plain weights: ")
    assert not trap.exists()
