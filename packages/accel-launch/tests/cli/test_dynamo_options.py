"""How models are compiled, by flags, files and variables, in our words and those of `accelerate launch`."""

from pathlib import Path

import pytest
from accel import TorchDynamoPlugin
from accel_launch.cli.launch_command import resolve_options
from accel_launch.job.plan import plan_one
from accel_state.environ import settings

NOWHERE = {"ACCEL_HOME": "/nowhere"}


@pytest.mark.parametrize(
    ("tokens", "plugin"),
    [
        ("--dynamo_backend inductor", TorchDynamoPlugin(backend="inductor")),
        ("--dynamo-backend=AOT_EAGER --dynamo_use_fullgraph", TorchDynamoPlugin(backend="aot_eager", fullgraph=True)),
        (
            "--dynamo_backend eager --dynamo_mode max-autotune --dynamo_use_dynamic --dynamo_use_regional_compilation",
            TorchDynamoPlugin("eager", "max-autotune", dynamic=True, use_regional_compilation=True),
        ),
        ("--dynamo_config backend=eager,use_dynamic=false", TorchDynamoPlugin("eager", dynamic=False)),
    ],
)
def test_processes_are_told_how_to_compile(tokens: str, plugin: TorchDynamoPlugin) -> None:
    """S188: from flags to what an Accelerator is asked for."""
    line = resolve_options([*tokens.split(), "s.py"], NOWHERE)
    assert line.problems == ()
    told = settings(plan_one(line.settings, ["s.py"], {}).environ)
    assert told.dynamo is not None
    assert TorchDynamoPlugin.from_words(told.dynamo) == plugin


@pytest.mark.parametrize("tokens", ["", "--dynamo_backend no", "--dynamo_backend NO --dynamo_mode default"])
def test_nothing_is_told_where_nothing_is_compiled(tokens: str) -> None:
    line = resolve_options([*tokens.split(), "s.py"], NOWHERE)
    assert line.problems == ()
    assert settings(plan_one(line.settings, ["s.py"], {}).environ).dynamo is None


def test_a_flag_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: default}\n")
    line = resolve_options(["--config_file", str(file), "--dynamo_backend", "eager", "s.py"], NOWHERE)
    assert line.settings.dynamo_config == {"backend": "eager", "mode": "default"}


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("--dynamo_mode fast", "mode=fast: expected one of default, reduce-overhead, max-autotune"),
        ("--dynamo_use_fullgraph", "use_fullgraph=true, and nothing is compiled: add --dynamo_backend inductor"),
        ("--dynamo_config backend=eager,use_dynamic=maybe", "use_dynamic=maybe: expected true or false"),
        ("--dynamo_config backnd=eager", "unknown name 'backnd'; did you mean 'backend'?"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(tokens: str, words: str) -> None:
    (problem,) = resolve_options([*tokens.split(), "s.py"], NOWHERE).problems
    assert words in problem
