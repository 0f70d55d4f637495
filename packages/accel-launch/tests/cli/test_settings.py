"""Flag over variable over file over default."""

import itertools
import json
import re
from pathlib import Path

import click
import pytest
from accel_launch.cli.launch_command import resolve_options
from accel_launch.cli.launch_option import LaunchOption
from accel_launch.cli.option_types import (
    COUNT,
    DEVICES,
    FILE,
    FOLDER,
    HOST,
    INTERVAL,
    NUMBER,
    PAIRS,
    PORT,
    SWITCH,
    Value,
    as_text,
)
from accel_launch.cli.options import OPTIONS, LaunchSettings
from accel_launch.config.variables import variable_problems
from click.core import ParameterSource

SETTABLE = [option for option in OPTIONS if option.key and option.envvar]


def three_values(option: LaunchOption) -> tuple[Value, Value, Value]:
    """Different values that an option may have."""
    kinds: dict[object, tuple[Value, Value, Value]] = {
        **dict.fromkeys((COUNT, NUMBER, PORT), (2, 3, 4)),
        **dict.fromkeys((FILE, FOLDER, HOST), ("one", "two", "three")),
        INTERVAL: ("5", "30s", "7"),
        SWITCH: (True, False, True),
        DEVICES: ("0,1", "all", "2"),
        PAIRS: ({"a": "1"}, {"b": "2", "c": "3"}, {"d": "4"}),
    }
    named: dict[str, tuple[Value, Value, Value]] = {
        "fsdp_config": (
            {"min_num_params": "1"},
            {"auto_wrap_policy": "no_wrap", "offload_params": "true"},
            {"transformer_layer_cls_to_wrap": "One,Two"},
        ),
        "deepspeed_config": (
            {"zero_stage": "1"},
            {"deepspeed_config_file": "ds.json", "offload_param_device": "cpu"},
            {"gradient_clipping": "0.5"},
        ),
        "dynamo_config": (
            {"backend": "eager"},
            {"backend": "inductor", "mode": "default"},
            {"backend": "aot_eager", "use_dynamic": "true"},
        ),
        "parallelism_config": ({"tp_size": "2"}, {"dp_shard_size": "2", "tp_size": "3"}, {"dp_replicate_size": "4"}),
    }
    if option.name in named:
        return named[option.name]
    if isinstance(option.type, click.Choice):
        first, second, *_ = option.type.choices
        return first, second, first
    return kinds[option.type]


@pytest.mark.grid(2)
@pytest.mark.parametrize("option", SETTABLE, ids=lambda option: option.name)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("present", list(itertools.product([True, False], repeat=3)), ids=str)
def test_the_first_source_that_speaks_wins_for_every_option(
    option: LaunchOption, order: tuple[int, ...], present: tuple[bool, ...], tmp_path: Path
) -> None:
    """S108a."""
    values = [three_values(option)[position] for position in order]
    flag, variable, file = present
    content = {option.key: values[2]} if file else {}
    (tmp_path / "default_config.yaml").write_text(json.dumps(content))
    environ = {"ACCEL_HOME": str(tmp_path), **({str(option.envvar): as_text(values[1])} if variable else {})}
    line = resolve_options([*(option.words(values[0]) if flag else []), "s.py"], environ)
    assert not line.problems
    name = str(option.name)
    expected = [
        (values[0], ParameterSource.COMMANDLINE, flag),
        (values[1], ParameterSource.ENVIRONMENT, variable),
        (values[2], ParameterSource.DEFAULT_MAP, file),
        (getattr(LaunchSettings(), name), ParameterSource.DEFAULT, True),
    ]
    assert (getattr(line.settings, name), line.settings.origin(name)) == next(
        (value, origin) for value, origin, speaks in expected if speaks
    )


def test_every_config_key_can_be_set_by_a_flag_and_by_a_variable() -> None:
    """S108a."""
    assert {option.name for option in OPTIONS if option.key} == {option.name for option in SETTABLE}


def problems(environ: dict[str, str], *flags: str) -> tuple[str, ...]:
    """What is wrong with a line of these flags in an environment without a config file."""
    return resolve_options([*flags, "s.py"], {"ACCEL_HOME": "/nowhere", **environ}).problems


def test_an_empty_variable_is_not_set() -> None:
    line = resolve_options(["s.py"], {"ACCEL_HOME": "/nowhere", "ACCEL_NUM_PROCESSES": " "})
    assert (line.settings.num_processes, line.problems) == (None, ())


def test_wrong_variables_are_all_reported() -> None:
    assert problems({"ACCEL_NUM_PROCESSES": "many", "ACCEL_USE_CPU": "perhaps"}) == (
        "ACCEL_NUM_PROCESSES in the environment: expected a whole number of at least 1, found 'many'",
        "ACCEL_USE_CPU in the environment: expected true or false",
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ACCEL_NUM_PROCESES", "ACCEL_NUM_PROCESSES"),
        ("ACCEL_MIXED_PRECISON", "ACCEL_MIXED_PRECISION"),
        ("ACCEL_LOG_LEVL", "ACCEL_LOG_LEVEL"),
        ("ACCEL_SHARED_MEMORYES", "ACCEL_SHARED_MEMORY"),
        ("ACCEL_CPU", "ACCEL_USE_CPU"),
        ("ACCEL_MODE", None),  # with the part that all share it would be near ACCEL_HOME
        ("ACCEL_SIMULATOR_PATH", None),
        ("ACCELL_NUM_PROCESSES", None),
    ],
)
def test_a_misspelt_variable_is_told_with_the_variable_that_was_meant(name: str, meant: str | None) -> None:
    """T15."""
    expected = f"{name} in the environment is not a variable of accel; did you mean {meant}? If not, unset it"
    assert problems({name: "2"}) == (() if meant is None else (expected,))
    assert problems({name: ""}) == ()


def test_a_variable_of_accelerate_is_not_passed_over_in_silence() -> None:
    asked = {"ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}
    precision, steps = problems(asked)
    assert precision.startswith("ACCELERATE_MIXED_PRECISION='fp16' in the environment sets nothing here: ")
    assert steps.endswith("set ACCEL_GRADIENT_ACCUMULATION_STEPS, or unset it")
    assert problems({**asked, "ACCEL_MIXED_PRECISION": "no"}, "--gradient_accumulation_steps", "2") == ()
    nothing = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "false", "ACCELERATE_DEBUG_MODE": "1"}
    assert problems({**nothing, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"}) == ()


def test_every_variable_that_accel_reads_is_known() -> None:
    """A name that is nearly another's, such as ACCEL_LOG_LEVEL and ACCEL_LOG_DIR, must not be taken for a mistake."""
    packages = Path(__file__).parents[3]
    sources = [path.read_text() for path in packages.glob("*/src/**/*.py")]
    found = {name for text in sources for name in re.findall(r"\"(ACCEL_[A-Z_]+[A-Z])\"", text)}
    assert {"ACCEL_STORE_FD", "ACCEL_HOME", "ACCEL_WATCHDOG"} <= found
    told = variable_problems(dict.fromkeys(found, "1"), LaunchSettings())
    assert [problem for problem in told if "not a variable of accel" in problem] == []


def test_nothing_said_is_one_process_of_nothing_special() -> None:
    settings = LaunchSettings()
    assert settings.num_processes is None
    assert not settings.cpu
    assert not settings.said("cpu")


def test_the_config_file_itself_is_named_by_a_flag_or_a_variable(tmp_path: Path) -> None:
    """S107."""
    (tmp_path / "two.yaml").write_text("num_processes: 2\n")
    name = str(tmp_path / "two.yaml")
    assert resolve_options(["--config_file", name, "s.py"], {}).settings.num_processes == 2
    assert resolve_options(["s.py"], {"ACCEL_CONFIG_FILE": name}).settings.num_processes == 2
