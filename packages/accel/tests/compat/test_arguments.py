"""Arguments that scripts for Accelerate give, and what becomes of them."""

import json
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, DataLoaderConfiguration, TorchDynamoPlugin, load_checkpoint_in_model
from accel.data_loader import DataLoaderDispatcher, prepare_data_loader
from accel.state import AcceleratorState, PartialState
from accel_comm import GroupOptions
from accel_state import RunConflict, run_context
from accel_testing import MakePool
from suite.toy_models import Mlp, RangeDataset
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader


def test_arguments_that_ask_for_nothing_are_accepted() -> None:
    """S170."""
    none = dict.fromkeys(("fsdp_plugin", "deepspeed_plugin", "parallelism_config", "megatron_lm_plugin", "strategy"))
    assert Accelerator(cpu=True, **none).num_processes == 1  # type: ignore[arg-type]


def test_a_plugin_of_megatron_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"megatron_lm_plugin is a dict.*tp_size"):
        Accelerator(cpu=True, megatron_lm_plugin={})  # type: ignore[arg-type]


def test_stateful_loaders_may_be_asked_for() -> None:
    """S170: every prepared loader has a state."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    loader: Any = accelerator.prepare(DataLoader(RangeDataset(8), batch_size=2))
    assert loader.state_dict()["epoch"] == 0


def test_a_configuration_may_be_filled_until_an_accelerator_has_it() -> None:
    """S170: Trainer sets `data_seed` after construction; later changes are the user's own."""
    config = DataLoaderConfiguration()
    config.data_seed = 3
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    config.data_seed = 4
    assert accelerator.settings.data.data_seed == 3


def test_no_backend_compiles_nothing() -> None:
    """S170."""
    assert TorchDynamoPlugin(backend=None).backend == "no"
    assert TorchDynamoPlugin(backend="EAGER").backend == "eager"
    assert Accelerator(cpu=True, dynamo_plugin=TorchDynamoPlugin(backend=None)).num_processes == 1


def opened_with_options() -> None:
    PartialState(cpu=True, backend="gloo", timeout=timedelta(seconds=77))
    assert run_context._group == GroupOptions("gloo", None, timedelta(seconds=77))
    with pytest.raises(RunConflict, match="process group that is open already"):
        PartialState(timeout=timedelta(seconds=78))


def test_the_state_takes_what_opens_the_process_group(world: MakePool) -> None:
    """S170."""
    world(2).run(opened_with_options)


def test_the_state_of_an_accelerator_ends_its_run() -> None:
    """S172."""
    Accelerator(cpu=True)
    state = AcceleratorState()
    state.destroy_process_group()
    assert not state.initialized


def numbers() -> DataLoader[Any]:
    data: Any = range(8)
    return DataLoader(data, batch_size=2)


def share_of_a_loader() -> tuple[str, list[Any]]:
    PartialState(cpu=True)
    loader = prepare_data_loader(numbers(), dispatch_batches=True, put_on_device=True)
    return type(loader).__name__, [batch.tolist() for batch in loader]


def test_a_loader_is_prepared_for_the_run(world: MakePool) -> None:
    """S171: what is not given comes from the state."""
    name = DataLoaderDispatcher.__name__
    assert world(2).run(share_of_a_loader) == [(name, [[0, 1], [4, 5]]), (name, [[2, 3], [6, 7]])]


def test_a_loader_is_prepared_for_other_numbers_than_those_of_the_run() -> None:
    """S171."""
    PartialState(cpu=True)
    loader = prepare_data_loader(numbers(), num_processes=2)
    assert [batch.tolist() for batch in loader] == [[0, 1], [4, 5]]
    other = prepare_data_loader(numbers(), num_processes=2, process_index=1)
    assert [batch.tolist() for batch in other] == [[2, 3], [6, 7]]


def unwrapped() -> None:
    accelerator = Accelerator(cpu=True)
    model = Mlp()
    compiled: Any = torch.compile(DistributedDataParallel(model), backend="eager")
    kept = accelerator.unwrap_model(compiled)
    assert type(kept) is type(compiled)
    assert kept._orig_mod is model
    assert isinstance(compiled._orig_mod, DistributedDataParallel), "the container goes on"
    assert accelerator.unwrap_model(compiled, keep_torch_compile=False) is model


def test_models_come_out_of_every_container(world: MakePool) -> None:
    """S171: out of DataParallel, and out of containers that were compiled."""
    model = Mlp()
    accelerator = Accelerator(cpu=True)
    assert accelerator.unwrap_model(DataParallel(model)) is model
    compiled: Any = torch.compile(DataParallel(model), backend="eager")
    assert accelerator.unwrap_model(compiled, keep_torch_compile=False) is model
    alone: Any = torch.compile(model, backend="eager")
    assert accelerator.unwrap_model(alone) is alone
    world(2).run(unwrapped)


def test_an_index_may_be_the_map_itself(tmp_path: Path) -> None:
    """S171."""
    model = nn.Linear(2, 2)
    torch.save(model.state_dict(), tmp_path / "part.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(dict.fromkeys(model.state_dict(), "part.bin")))
    loaded = nn.Linear(2, 2)
    load_checkpoint_in_model(loaded, tmp_path)
    torch.testing.assert_close(loaded.weight, model.weight)


def test_checkpoints_stay_safetensors(tmp_path: Path) -> None:
    """S171: safe_serialization=False is answered by a warning."""
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))
    with pytest.warns(UserWarning, match="safe_serialization=False.*safetensors all the same"):
        folder = accelerator.save_state(tmp_path / "saved", safe_serialization=False)
    assert list(folder.rglob("*.safetensors"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator.load_state(folder)
