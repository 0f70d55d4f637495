"""Arguments over environment over defaults; all problems at once."""

import runpy
from inspect import signature
from typing import Any

import pytest
import torch
from accel import (
    Accelerator,
    ActivationCheckpointingKwargs,
    FullyShardedDataParallelPlugin,
    ParallelismConfig,
    TorchDynamoPlugin,
)
from accel.configuration import DataLoaderConfiguration
from accel.settings import Settings, resolve
from accel_names import deepspeed
from accel_state import CannotRun

DEFAULTS = {name: parameter.default for name, parameter in signature(Accelerator).parameters.items()}


def resolved(environ: dict[str, str] | None = None, **arguments: Any) -> Settings:
    return resolve(environ or {}, DEFAULTS | arguments)


def test_the_defaults_are_one_plain_process() -> None:
    settings = resolved()
    assert (settings.cpu, settings.mixed_precision, settings.accumulation_steps) == (False, None, 1)
    assert [kind.value for kind in settings.rng_types] == ["generator"]


def test_the_launcher_sets_what_the_script_leaves_open() -> None:
    """S24: --cpu and --mixed_precision reach a bare Accelerator() through the environment."""
    environ = {"ACCEL_USE_CPU": "1", "ACCEL_MIXED_PRECISION": "bf16", "ACCEL_GRADIENT_ACCUMULATION_STEPS": "4"}
    settings = resolved(environ)
    assert (settings.cpu, settings.mixed_precision, settings.accumulation_steps) == (True, "bf16", 4)


def test_the_launcher_says_how_to_compile_unless_the_script_does() -> None:
    """S188: `--dynamo_backend`."""
    environ = {"ACCEL_DYNAMO_CONFIG": "backend=eager,use_dynamic=true"}
    assert resolved(environ).compilation == TorchDynamoPlugin("eager", dynamic=True)
    assert resolved(environ, dynamo_backend="no").compilation == TorchDynamoPlugin()
    assert resolved(environ, dynamo_plugin=TorchDynamoPlugin("aot_eager")).compilation.backend == "aot_eager"
    wrong = {
        "backend=nobody": "dynamo_backend='nobody'",
        "backend=eager,use_dynamic=maybe": "dynamic=maybe: expected true",
        "backend=eager,speed=9": "unknown entry speed",
    }
    for words, problem in wrong.items():
        with pytest.raises(ValueError, match=problem):
            resolved({"ACCEL_DYNAMO_CONFIG": words})


def test_code_wins_over_the_environment() -> None:
    environ = {"ACCEL_MIXED_PRECISION": "bf16", "ACCEL_GRADIENT_ACCUMULATION_STEPS": "4"}
    settings = resolved(environ, mixed_precision="no", gradient_accumulation_steps=1)
    assert (settings.mixed_precision, settings.accumulation_steps) == ("no", 1)


def test_fp16_is_another_word_for_its_precision() -> None:
    """S23: fp16=True."""
    assert resolved(fp16=True).mixed_precision == "fp16"
    assert resolved(fp16=True, mixed_precision="fp16").mixed_precision == "fp16"


def test_split_batches_is_an_argument_and_a_field() -> None:
    """S27: split_batches=True is honoured, with or without a configuration object."""
    assert resolved(split_batches=True).data.split_batches
    config = DataLoaderConfiguration(even_batches=False)
    assert resolved(split_batches=True, dataloader_config=config).data == DataLoaderConfiguration(
        split_batches=True, even_batches=False
    )


def test_an_unknown_precision_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"mixed_precision='fp17': expected one of bf16, fp16, fp8, no"):
        resolved(mixed_precision="fp17")


def test_all_misspelt_arguments_are_named_with_those_that_are_meant() -> None:
    misspelt: Any = {"mixed_precison": "no", "logwith": None, "qqq": 1}
    with pytest.raises(TypeError) as error:
        Accelerator(cpu=True, **misspelt)
    named = "mixed_precison (did you mean mixed_precision?), logwith (did you mean log_with?), qqq;"
    assert str(error.value).startswith(f"Accelerator has no arguments {named}")


@pytest.mark.parametrize("steps", [0, -1, 2.0, True])
def test_accumulation_steps_are_whole_and_positive(steps: Any) -> None:
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=.*: expected a whole number of at least 1"):
        resolved(gradient_accumulation_steps=steps)


def test_options_of_a_strategy_are_given_once() -> None:
    plugin = FullyShardedDataParallelPlugin()
    with pytest.raises(ValueError, match="strategy_options and the options of fsdp2 in another argument"):
        resolved(strategy="fsdp2", strategy_options=plugin, fsdp_plugin=plugin)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ValueError, match=r"(?s)contradict.*gradient_accumulation_steps=0.*'dice'"):
        resolved(fp16=True, mixed_precision="bf16", gradient_accumulation_steps=0, rng_types=["dice"])


def test_nonsense_in_the_environment_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ACCEL_USE_CPU='maybe'"):
        resolved({"ACCEL_USE_CPU": "maybe"})
    with pytest.raises(ValueError, match=r"ACCEL_GRADIENT_ACCUMULATION_STEPS='many'"):
        resolved({"ACCEL_GRADIENT_ACCUMULATION_STEPS": "many"})
    with pytest.raises(ValueError, match=r"(?s)ACCEL_USE_CPU='maybe'.*'dice'"):
        resolved({"ACCEL_USE_CPU": "maybe"}, rng_types=["dice"])


@pytest.mark.parametrize("name", ["fsdp", "zero", "fairscale"])
def test_a_sharded_strategy_is_refused_in_words(name: str) -> None:
    """S14: what is not there says so, with what there is."""
    with pytest.raises(
        ValueError,
        match=rf"strategy='{name}': expected one of auto, ddp, .*fsdp2, single, spmd, or a Strategy",
    ):
        resolved(strategy=name)


def without_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_state.registry.entry_points_of", lambda group: [])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("environ", "asked"),
    [({}, {"strategy": "deepspeed"}), ({"ACCEL_USE_DEEPSPEED": "1", "ACCEL_DEEPSPEED_CONFIG": "zero_stage=2"}, {})],
)
def test_a_missing_package_of_a_strategy_is_told_once_with_its_install(
    environ: dict[str, str], asked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S114: whether the script or the launcher asks for DeepSpeed."""
    without_deepspeed(monkeypatch)
    with pytest.raises(
        ValueError, match=r"strategy='deepspeed' comes with .*pip install './packages/accel-deepspeed"
    ) as error:
        resolved(environ, **asked)
    assert str(error.value).count("pip install") == 1


def test_a_script_may_import_what_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import these at their top, and make them only if they train by DeepSpeed."""
    without_deepspeed(monkeypatch)
    names = runpy.run_path(str(deepspeed.__file__))
    for name in ("DeepSpeedPlugin", "DummyOptim", "DummyScheduler"):
        assert not isinstance(torch.nn.Linear(1, 1), names[name])
        with pytest.raises(CannotRun, match=rf"{name}: .*pip install './packages/accel-deepspeed\[deepspeed\]'"):
            names[name]([], lr=1.0)


def test_programs_for_accelerate_are_warned_of_different_data() -> None:
    """S180: such programs may draw their data without a seed."""
    door = {"ACCEL_AS_ACCELERATE": "1"}
    assert resolved().data.check_datasets is True
    assert resolved(door).data.check_datasets == "warn"
    for asked in ("error", False):
        configuration = DataLoaderConfiguration(check_datasets=asked)
        assert resolved(door, dataloader_config=configuration).data.check_datasets == asked


def test_switches_of_its_launcher_that_are_not_read_are_refused() -> None:
    switches = {f"ACCELERATE_USE_{name}": "true" for name in ("DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")}
    resolved(switches)
    with pytest.raises(ValueError, match=r"_DEEPSPEED=true has no effect(.|\n)*_LM=true(.|\n)*_CONFIG=true"):
        resolved({**switches, "ACCEL_AS_ACCELERATE": "1"})
    sizes = ParallelismConfig(dp_shard_size=2)
    door = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "ACCEL_AS_ACCELERATE": "1"}
    assert resolved(door, parallelism_config=sizes).parallelism == sizes


def test_recomputation_alone_is_not_of_variables_of_sharding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_AS_ACCELERATE", "1")
    monkeypatch.setenv("FSDP_AUTO_WRAP_POLICY", "NO_WRAP")
    found = resolved(kwargs_handlers=[ActivationCheckpointingKwargs()]).recomputation
    assert found is not None
    assert found.auto_wrap_policy == "transformer_based_wrap"
