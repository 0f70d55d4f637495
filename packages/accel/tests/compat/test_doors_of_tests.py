"""What tests and commands for Accelerate import: `test_utils`, `inference`, `commands.estimate`, `commands.merge`."""

import sys
from argparse import Namespace
from importlib import import_module

import pytest
import torch
from accel.commands.estimate import create_empty_model, estimate_command, estimate_command_parser, gather_data
from accel.commands.merge import merge_command_parser
from accel.test_utils import (
    DEFAULT_LAUNCH_COMMAND,
    RegressionDataset,
    RegressionModel,
    are_the_same_tensors,
    assert_exception,
    execute_subprocess_async,
    get_launch_command,
)
from accel_state import CannotRun
from accel_testing import MakePool


def test_the_line_of_tests_can_be_learnt() -> None:
    """S175: points with a seed are the same, and the model has both numbers."""
    one, other = RegressionDataset(seed=1, length=8), RegressionDataset(seed=1, length=8)
    assert len(one) == 8
    assert [one[at] for at in range(8)] == [other[at] for at in range(8)]
    assert abs(one[0]["y"] - (2 * one[0]["x"] + 3)) < 1
    model = RegressionModel(a=2, b=3)
    assert [name for name, _ in model.named_parameters()] == ["a", "b"]
    assert model(torch.tensor([1.0])).tolist() == [5.0]


def alike() -> tuple[bool, bool]:
    rank = import_module("accel").PartialState(cpu=True).process_index
    return are_the_same_tensors(torch.ones(2)), are_the_same_tensors(torch.tensor(float(rank)))


def test_tensors_are_compared_over_ranks(world: MakePool) -> None:
    assert world(2).run(alike) == [(True, False)] * 2


def test_an_expected_error_has_its_words() -> None:
    with assert_exception(ValueError, "seven"):
        raise ValueError("not seven")
    with pytest.raises(AssertionError, match='"six" does not match "not seven"'), assert_exception(ValueError, "six"):
        raise ValueError("not seven")
    with pytest.raises(AssertionError, match="ValueError not raised"), assert_exception(ValueError):
        pass


def test_commands_are_run_to_their_end() -> None:
    assert execute_subprocess_async([sys.executable, "-c", "print(3)"]).stdout == ["3"]
    with pytest.raises(RuntimeError, match="exit code 4"):
        execute_subprocess_async([sys.executable, "-c", "raise SystemExit(4)"])
    assert get_launch_command(num_processes=2, cpu=True, multi_gpu=False)[-2:] == ["--num_processes=2", "--cpu"]
    assert DEFAULT_LAUNCH_COMMAND[1:4] == ["-m", "accel", "launch"]


def test_the_estimate_is_a_function_too(capsys: pytest.CaptureFixture[str]) -> None:
    """S175."""
    arguments = estimate_command_parser().parse_args(
        ["accel.test_utils:RegressionModel", "--dtypes", "float32", "int8"]
    )
    assert next(create_empty_model(arguments.model_name).parameters()).is_meta
    assert gather_data(arguments)[0][2:] == [8, 32]
    assert gather_data(arguments)[1][3] is None
    estimate_command(arguments)
    assert "float32" in capsys.readouterr().out
    with pytest.raises(CannotRun, match="no code out of a folder"):
        create_empty_model("accel.test_utils:RegressionModel", trust_remote_code=True)
    with pytest.raises(CannotRun):
        gather_data(Namespace(model_name="nothing_of_this_name:x", dtypes=["float32"]))
    with pytest.raises(OSError, match="nothing_of_this_name"):
        estimate_command(Namespace(model_name="nothing_of_this_name", dtypes=["float32"]))


def test_the_merge_takes_the_words_of_a_command_line() -> None:
    arguments = merge_command_parser().parse_args(["in", "out", "--unsafe_serialization"])
    assert (arguments.checkpoint_directory, arguments.output_path) == ("in", "out")
    assert arguments.unsafe_serialization


def test_paths_of_what_is_not_here_say_what_to_do() -> None:
    """S175: at the top, and below it."""
    for module in ("accel", "accel.inference", "accel.utils"):
        with pytest.raises(AttributeError, match="prepare_pippy is not in accel: "):
            _ = import_module(module).prepare_pippy
    assert import_module("accel").DDPCommunicationHookType.NO
