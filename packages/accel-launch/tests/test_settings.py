"""Flag over variable over file over default."""

import itertools
import re
from pathlib import Path

import pytest
from accel_launch.arguments import split
from accel_launch.config import interpret
from accel_launch.kinds import COUNT, DEVICES, NUMBER, PAIRS, PORT, SWITCH, Value
from accel_launch.options import OPTIONS, Option
from accel_launch.questions import choices
from accel_launch.settings import Origin, launch_settings, of_accelerate, read_variables, resolve

SETTABLE = [option for option in OPTIONS if option.key is not None and option.variable is not None]


def three_values(option: Option) -> tuple[Value, Value, Value]:
    if option.kind in (COUNT, NUMBER, PORT):
        return 2, 3, 4
    if option.kind is SWITCH:
        return True, False, True
    if option.kind is DEVICES:
        return "0,1", "all", "2"
    if option.kind is PAIRS:
        return "a=1", "b=2,c=3", "d=4"
    first, second, *_ = choices(option.name) or ("one", "two")
    return first, second, first


def as_flag(option: Option, value: Value) -> list[str]:
    if option.kind is SWITCH:
        return [(option.on if value else option.off)[0]]
    return [option.flags[-1], str(value)]


@pytest.mark.parametrize("option", SETTABLE, ids=lambda option: option.name)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("present", list(itertools.product([True, False], repeat=3)), ids=str)
def test_s108a_the_first_source_that_speaks_wins_for_every_option(
    option: Option, order: tuple[int, ...], present: tuple[bool, ...]
) -> None:
    values = [three_values(option)[position] for position in order]
    flag, variable, file = present
    assert option.variable is not None
    line = split([*(as_flag(option, values[0]) if flag else []), "s.py"])
    variables, wrong = read_variables({option.variable: str(values[1])} if variable else {})
    content, bad = interpret({option.key: values[2]} if file else {})
    assert not [*line.problems, *wrong, *bad]
    won = resolve(line.flags, variables, content)[option.name]
    expected = [
        (values[0], Origin.FLAG, flag),
        (values[1], Origin.ENVIRONMENT, variable),
        (values[2], Origin.FILE, file),
        (None, Origin.DEFAULT, True),
    ]
    assert (won.value, won.origin) == next((value, origin) for value, origin, speaks in expected if speaks)


def test_every_config_key_can_be_set_by_a_flag_and_by_a_variable() -> None:
    """S108a."""
    assert {option.name for option in OPTIONS if option.key} == {option.name for option in SETTABLE}
    assert all(option.flags for option in OPTIONS)


def test_an_empty_variable_is_not_set() -> None:
    assert read_variables({"ACCEL_NUM_PROCESSES": " "}) == ({}, [])


def test_wrong_variables_are_all_reported() -> None:
    _, problems = read_variables({"ACCEL_NUM_PROCESSES": "many", "ACCEL_USE_CPU": "perhaps"})
    assert problems == [
        "ACCEL_NUM_PROCESSES='many' in the environment: expected a whole number of at least 1",
        "ACCEL_USE_CPU='perhaps' in the environment: expected true or false",
    ]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ACCEL_NUM_PROCESES", "ACCEL_NUM_PROCESSES"),
        ("ACCEL_MIXED_PRECISON", "ACCEL_MIXED_PRECISION"),
        ("ACCEL_LOG_LEVL", "ACCEL_LOG_LEVEL"),
        ("ACCEL_MAILBOXES", "ACCEL_MAILBOX"),
        ("ACCEL_CPU", "ACCEL_USE_CPU"),
        ("ACCEL_MODE", None),  # with the part that all share it would be near ACCEL_HOME
        ("ACCEL_SIMULATOR_PATH", None),
        ("ACCELL_NUM_PROCESSES", None),
    ],
)
def test_t15_a_misspelt_variable_names_the_one_that_was_meant_and_others_are_left_alone(
    name: str, meant: str | None
) -> None:
    values, problems = read_variables({name: "2"})
    assert values == {}
    expected = f"{name} in the environment is no variable of accel; did you mean {meant}? If not, unset it"
    assert problems == ([] if meant is None else [expected])
    assert read_variables({name: ""}) == ({}, [])


def test_a_variable_of_accelerate_that_asks_for_something_is_no_silent_nothing() -> None:
    asked = {"ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}
    precision, steps = of_accelerate(asked, ())
    assert precision.startswith("ACCELERATE_MIXED_PRECISION='fp16' in the environment sets nothing here: ")
    assert steps.endswith("set ACCEL_GRADIENT_ACCUMULATION_STEPS, or unset it")
    assert list(of_accelerate({**asked, "ACCEL_MIXED_PRECISION": "no"}, ["gradient_accumulation_steps"])) == []
    nothing = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "false", "ACCELERATE_DEBUG_MODE": "1"}
    assert list(of_accelerate({**nothing, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"}, ())) == []


def test_every_variable_that_accel_reads_is_known() -> None:
    """A name that is nearly another's, such as ACCEL_LOG_LEVEL and ACCEL_LOG_DIR, must not be taken for a mistake."""
    packages = Path(__file__).parents[2]
    sources = [path.read_text() for path in packages.glob("*/src/**/*.py")]
    found = {name for text in sources for name in re.findall(r"\"(ACCEL_[A-Z_]+[A-Z])\"", text)}
    assert {"ACCEL_STORE_FD", "ACCEL_HOME", "ACCEL_WATCH"} <= found
    _, problems = read_variables(dict.fromkeys(found, "1"))
    assert [problem for problem in problems if "no variable of accel" in problem] == []


def test_nothing_said_is_one_process_of_nothing_special() -> None:
    settings = launch_settings(resolve({}, {}, {}))
    assert settings.num_processes is None
    assert not settings.cpu
    assert not settings.said("cpu")


def test_the_config_file_itself_is_named_by_a_flag_or_a_variable() -> None:
    """S107."""
    assert split(["--config_file", "two.yaml", "s.py"]).flags == {"config_file": "two.yaml"}
    assert read_variables({"ACCEL_CONFIG_FILE": str(Path("x.yaml"))})[0] == {"config_file": "x.yaml"}
