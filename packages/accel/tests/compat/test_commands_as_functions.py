"""Commands of Accelerate as functions: their parsers, config files as objects, and what they do."""

import logging
import re
import subprocess
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from accel.commands.config.config_args import ClusterConfig, SageMakerConfig, load_config_from_file
from accel.commands.estimate import add_timm_hub_prefix
from accel.commands.launch import launch_command, launch_command_parser
from accel.commands.test import test_command as check
from accel.commands.test import test_command_parser as check_parser
from accel.commands.to_fsdp2 import convert_config_to_fsdp2, to_fsdp2_command, to_fsdp2_command_parser
from accel.commands.tpu import tpu_command_launcher, tpu_command_parser
from accel_names.commands.launch import command_of
from accel_names.commands.merging import COMMAND as MERGE
from accel_names.commands.to_fsdp2 import COMMAND as TO_FSDP2
from accel_state import CannotRun

OLD = {"fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_use_orig_params": True, "fsdp_offload_params": True}


def test_the_parser_knows_flags_that_ask_for_nothing() -> None:
    parser = launch_command_parser()
    given = parser.parse_args(["--multi-gpu", "--use_fsdp", "--num-processes", "4", "t.py"])
    assert (given.multi_gpu, given.use_fsdp, given.num_processes) == (True, True, 4)
    assert parser.parse_args(["t.py"]).multi_gpu is False
    text = parser.format_help()
    assert "--num_processes" in text
    assert "--main-process-port" not in text
    with pytest.raises(SystemExit):
        parser.parse_args(["--num_processes", "no", "t.py"])


def test_a_launch_of_one_process_comes_back(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text("import sys; sys.exit(int(sys.argv[1]))")
    parser = launch_command_parser()
    launch_command(parser.parse_args(["--cpu", "--multi_gpu", str(script), "0"]))
    with pytest.raises(SystemExit, match="3"):
        launch_command(parser.parse_args(["--cpu", str(script), "3"]))


def test_the_check_is_a_function_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def main(words: list[str], **_: Any) -> int:
        asked.append(words)
        return len(words)

    monkeypatch.setattr(import_module("accel_launch.cli.commands.test").COMMAND, "main", main)
    check(check_parser().parse_args([]))
    with pytest.raises(SystemExit, match="2"):
        check(check_parser().parse_args(["--config_file", "x.yaml"]))
    assert asked == [[], ["--config_file", "x.yaml"]]


def test_a_config_file_is_an_object(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("distributed_type: NO\nfp16: true\nnum_processes: 2\ndynamo_backend: INDUCTOR\nmain_process_ip:\n")
    config = load_config_from_file(file)
    assert isinstance(config, ClusterConfig)
    assert (config.distributed_type, config.num_processes, config.mixed_precision) == ("NO", 2, "fp16")
    assert config.dynamo_config == {"dynamo_backend": "INDUCTOR"}
    config.to_yaml_file(file)
    assert load_config_from_file(file) == config
    config.to_json_file(tmp_path / "c.json")
    assert load_config_from_file(tmp_path / "c.json") == config


def test_a_config_file_of_sagemaker_is_an_object(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\nec2_instance_type: a\niam_role_name: b"
    )
    config = load_config_from_file(str(file))
    assert isinstance(config, SageMakerConfig)
    assert (config.distributed_type.value, config.iam_role_name) == ("NO", "b")


@pytest.mark.parametrize(("text", "words"), [("num_processes: 1", "no distributed_type"), ("a: 1", "found a")])
def test_a_config_file_that_is_none_of_accelerate_is_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text if words != "found a" else f"distributed_type: FSDP\n{text}")
    with pytest.raises(ValueError, match=words):
        load_config_from_file(file)
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        load_config_from_file(tmp_path / "none.yaml")


def test_a_config_for_fsdp1_is_converted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "accel"):
        after = convert_config_to_fsdp2({"a": 1, "fsdp_config": OLD})
    words = {"fsdp_reshard_after_forward": False, "fsdp_offload_params": True, "fsdp_version": 2}
    assert after == {"a": 1, "fsdp_config": words}
    assert convert_config_to_fsdp2(after) is after
    assert "no counterpart of fsdp_use_orig_params" in caplog.text
    convert_config_to_fsdp2({"fsdp_config": {"fsdp_reshard_after_forward": "NO_SHARD"}})
    assert "leave FSDP out" in caplog.text


@pytest.mark.parametrize(("strategy", "frees"), [(1, True), ("2", False), (3, False), (4, True), (5, False)])
def test_the_number_of_a_strategy_is_that_strategy(
    strategy: Any, frees: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = convert_config_to_fsdp2({"fsdp_config": {"fsdp_sharding_strategy": strategy}})
    assert config["fsdp_config"]["fsdp_reshard_after_forward"] is frees
    assert ("copy is sharded by" in caplog.text) == (strategy in (4, 5))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "# A\ndistributed_type: NO\nfsdp_config:\n  fsdp_sharding_strategy: 2\n  fsdp_version: 1\nb: no # C\nd:\n",
            "# A\ndistributed_type: NO\nfsdp_config:\n  fsdp_reshard_after_forward: false\n  fsdp_version: 2\n"
            "b: no # C\nd:\n",
        ),
        (
            '{"fsdp_config": {"fsdp_offload_params": true}, "a": null}',
            '{"fsdp_config": {"fsdp_offload_params": true, "fsdp_version": 2}, "a": null}',
        ),
        ("fsdp_config: {fsdp_version: 2} # so", "fsdp_config: {fsdp_version: 2} # so"),
        (
            "fsdp_config:\n    fsdp_offload_params: true",
            "fsdp_config:\n    fsdp_offload_params: true\n    fsdp_version: 2",
        ),
    ],
)
def test_all_but_the_part_for_fsdp_stays_as_written(before: str, after: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(before)
    to_fsdp2_command(to_fsdp2_command_parser().parse_args(["--config_file", str(file), "--overwrite"]))
    assert file.read_text() == after


@pytest.mark.parametrize(("text", "words"), [("- a", "found a list"), ("{", "while parsing"), ("a: 1", "--overwrite")])
def test_a_command_says_what_is_wrong_in_words(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    more = [] if words == "--overwrite" else ["--overwrite"]
    with pytest.raises(CannotRun, match=f"accel to-fsdp2: .*{words}"):
        TO_FSDP2.main(["--config_file", str(file), *more], standalone_mode=False)


@pytest.mark.parametrize("error", [RuntimeError("x"), subprocess.CalledProcessError(3, "gcloud")])
def test_a_failure_of_a_command_is_told_without_a_traceback(error: Exception) -> None:
    def fail(_: object) -> None:
        raise error

    with pytest.raises(CannotRun, match=rf"accel some: {re.escape(str(error))}"):
        command_of("some", ArgumentParser, fail).main([], standalone_mode=False)


def test_a_file_for_fsdp1_is_converted(tmp_path: Path) -> None:
    file, output = tmp_path / "c.yaml", tmp_path / "out.yaml"
    ClusterConfig("LOCAL_MACHINE", "FSDP", "no", False, False, fsdp_config=OLD).to_yaml_file(file)
    TO_FSDP2.main(["--config_file", str(file), "--output_file", str(output)], standalone_mode=False)
    config: Any = load_config_from_file(output)
    assert config.fsdp_config["fsdp_version"] == 2
    with pytest.raises(CannotRun, match=r"accel to-fsdp2: there is no config file none\.yaml"):
        TO_FSDP2.main(["--config_file", "none.yaml"], standalone_mode=False)
    parser = to_fsdp2_command_parser()
    for words, error in (
        (["--config_file", "none.yaml"], FileNotFoundError),
        (["--config_file", str(file)], ValueError),
        (["--config_file", str(file), "--output_file", str(output)], FileExistsError),
    ):
        with pytest.raises(error):
            to_fsdp2_command(parser.parse_args(words))
    to_fsdp2_command(parser.parse_args(["--config_file", str(file), "--overwrite"]))
    assert load_config_from_file(file) == config


def test_argparse_reads_the_words_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        MERGE.main(["--help"], standalone_mode=False)
    assert "checkpoint_directory" in capsys.readouterr().out


def test_commands_for_a_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path))
    (tmp_path / "do.sh").write_text("a\nb")
    file, parser = tmp_path / "c.yaml", ArgumentParser()
    file.write_text(f"distributed_type: NO\ntpu_name: pod\ntpu_zone: z\ncommand_file: {tmp_path / 'do.sh'}")
    tpu_command_parser(parser.add_subparsers())
    words = ["tpu-config", "--config_file", str(file), "--debug"]
    for more in ([], ["--command", "ls"], ["--install_accelerate", "--accelerate_version", "1.0"]):
        tpu_command_launcher(parser.parse_args([*words, *more]))
    line = "Running gcloud compute tpus tpu-vm ssh pod --zone z --command cd /usr/share; {} --worker all"
    runs = ("a; b", "ls", "pip install accelerate==1.0; a; b")
    assert capsys.readouterr().out.splitlines() == [line.format(run) for run in runs]
    with pytest.raises(ValueError, match="nothing to run"):
        tpu_command_launcher(tpu_command_parser().parse_args(["--debug"]))
    asked = tpu_command_parser().parse_args(["--command", "ls", "--debug"])
    with pytest.raises(ValueError, match="--tpu_name and --tpu_zone"):
        tpu_command_launcher(asked)
    file.rename(tmp_path / "default_config.yaml")
    tpu_command_launcher(asked)
    assert capsys.readouterr().out == f"{line.format('ls')}\n"


def test_arguments_for_sagemaker_have_values() -> None:
    convert = import_module("accel.utils")._convert_nargs_to_dict
    given = ["--name", "bert", "--do-train", "False", "--steps", "3", "--lr", "5e-5"]
    assert convert(given) == {"name": "bert", "do_train": False, "steps": 3, "lr": 5e-5}
    for wrong in (["--do_train"], ["--do_train", "--steps", "3"], ["--a", "1", "b", "2"]):
        with pytest.raises(ValueError, match="as --name value"):
            convert(wrong)


def test_names_of_the_hub_for_timm() -> None:
    names = ("resnet50", "timm/resnet50", "hf-hub:timm/resnet50", "local-dir:/a/b")
    assert [add_timm_hub_prefix(name) for name in names] == [names[0], "hf-hub:timm/resnet50", *names[2:]]
