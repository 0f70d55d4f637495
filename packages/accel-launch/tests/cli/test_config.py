"""What config files may say."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from accel_launch.cli.launch_command import ResolvedOptions, resolve_options
from accel_launch.config.config_file import config_folder

ACCELERATE_CPU = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
enable_cpu_affinity: false
machine_rank: 0
main_training_function: main
mixed_precision: no
mpirun_config: {}
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: true
"""


def write(folder: Path, text: str, name: str = "c.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read(path: Path) -> ResolvedOptions:
    """What a launch with a config file is asked for."""
    return resolve_options(["--config_file", str(path)], {})


def values(path: Path) -> dict[str, object]:
    """What a config file sets; nothing in it is wrong."""
    options = read(path)
    assert options.problems == ()
    settings = options.settings
    return {name: getattr(settings, name) for name in settings.origins if name != "config_file"}


def test_the_keys_of_a_file_become_values(tmp_path: Path) -> None:
    """S104."""
    text = "num_processes: 2\nuse_cpu: true\nmixed_precision: bf16\ngpu_ids: 0,1\ngradient_accumulation_steps: 4\n"
    assert values(write(tmp_path, text + "num_cpu_threads_per_process: 3\n")) == {
        "num_processes": 2,
        "cpu": True,
        "mixed_precision": "bf16",
        "gpu_ids": "0,1",
        "gradient_accumulation_steps": 4,
        "num_cpu_threads_per_process": 3,
    }


def test_json_is_read_as_well(tmp_path: Path) -> None:
    assert values(write(tmp_path, '{\n\t"num_processes":\t2\n}', "c.json")) == {"num_processes": 2}


def test_decision_12_a_file_of_accelerate_is_read(tmp_path: Path) -> None:
    assert values(write(tmp_path, ACCELERATE_CPU)) == {
        "num_processes": 4,
        "cpu": True,
        "mixed_precision": "no",
        "enable_cpu_affinity": False,
        "num_machines": 1,
        "machine_rank": 0,
        "rdzv_backend": "static",
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"distributed_type": "NO"}, {"num_processes": 1}),
        ({"distributed_type": False}, {"num_processes": 1}),
        ({"distributed_type": "MULTI_GPU", "num_processes": -1, "gpu_ids": "all"}, {"gpu_ids": "all"}),
        ({"distributed_type": "MULTI_CPU"}, {"cpu": True}),
        ({"distributed_type": "NO", "num_machines": 1}, {"num_machines": 1, "num_processes": 1}),
        ({"main_process_ip": None, "main_process_port": None, "machine_rank": 0}, {"machine_rank": 0}),
        (
            {"distributed_type": "MULTI_GPU", "num_machines": 2, "num_processes": 8, "main_process_port": 29500},
            {"num_machines": 2, "num_processes": 8, "main_process_port": 29500},
        ),
        (
            {"distributed_type": "MULTI_CPU", "num_machines": 2, "main_process_ip": "10.0.0.1", "machine_rank": 1},
            {"num_machines": 2, "main_process_ip": "10.0.0.1", "machine_rank": 1, "cpu": True},
        ),
        ({"fp16": True}, {"mixed_precision": "fp16"}),
        ({"fp16": False, "mixed_precision": False}, {"mixed_precision": "no"}),
        *(({"mixed_precision": word}, {"mixed_precision": "no"}) for word in ("no", "NO", "off", "False")),
        ({"gpu_ids": 1, "fsdp_config": {}, "tpu_name": None}, {"gpu_ids": "1"}),
        ({"gpu_ids": [0, 1], "num_processes": None}, {"gpu_ids": "0,1"}),
        ({"ipex_config": {"ipex": False, "use_xpu": False}, "use_mps_device": False, "use_cpu": False}, {"cpu": False}),
        ({"mpirun_config": {"mpirun_ccl": "0", "mpirun_hostfile": ""}, "ipex_config": {}, "tp_config": {}}, {}),
        ({"dynamo_config": {"dynamo_backend": "NO", "dynamo_mode": "default"}, "tp_config": {"tp_size": 1}}, {}),
        ({"dynamo_backend": "NO"}, {}),
        ({"dynamo_backend": "INDUCTOR"}, {"dynamo_config": {"backend": "inductor"}}),
        (
            {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_use_dynamic": False, "dynamo_mode": "default"}},
            {"dynamo_config": {"backend": "inductor", "use_dynamic": "false", "mode": "default"}},
        ),
        (
            {
                "parallelism_config": {
                    "parallelism_config_tp_size": 1,
                    "parallelism_config_cp_comm_strategy": "allgather",
                }
            },
            {},
        ),
    ],
)
def test_foreign_words_are_understood(content: dict[str, object], expected: dict[str, object], tmp_path: Path) -> None:
    """The same from JSON and from YAML."""
    assert values(write(tmp_path, json.dumps(content), "c.json")) == expected
    assert values(write(tmp_path, yaml.safe_dump(content))) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"num_machines": 0}, "num_machines: expected a whole number of at least 1, found '0'"),
        ({"machine_rank": -1}, "machine_rank: expected a whole number, or 0, found '-1'"),
        ({"main_process_port": 65536}, "main_process_port: expected a port"),
        ({"rdzv_backend": "etcd"}, "rdzv_backend: 'etcd' is not one of 'static', 'c10d'"),
        ({"distributed_type": "NO", "num_machines": 2}, "means one process, found num_machines: 2; remove"),
        (
            {"distributed_type": "NO", "num_machines": 2, "num_processes": 4},
            "found num_processes: 4 and num_machines: 2",
        ),
        ({"fsdp_config": {"fsdp_verson": 2}}, "fsdp_config: unknown name 'fsdp_verson'; did you mean 'version'?"),
        ({"fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"}}, "say dp_replicate_size and dp_shard_size"),
        ({"deepspeed_config": {"zero_stages": 3}}, "deepspeed_config: unknown name 'zero_stages'; did you mean"),
        ({"parallelism_config": {"x": 1}}, "parallelism_config"),
        ({"parallelism_config": {"parallelism_config_tp_size": 0}}, "parallelism_config"),
        ({"tp_config": {"tp_size": 4}}, "tp_config: {'tp_size': '4'} is not supported"),
        ({"ipex_config": {"ipex": True}}, "is not supported: accel launch does not set up Intel's extension"),
        ({"ipex_config": {"ipex": False, "use_xpu": True}}, "is not supported: accel launch does not set up Intel's"),
        ({"ipex_config": {"ipx": False}}, "ipex_config"),
        ({"mpirun_config": {"mpirun_hostfile": "~/hosts", "mpirun_ccl": "1"}}, "start the script with mpirun itself"),
        ({"dynamo_config": {"dynamo_mode": "fast"}}, "mode=fast: expected one of default, reduce-overhead"),
        ({"tpu_use_cluster": True}, "tpu_use_cluster"),
        ({"tpu_name": "pod"}, "tpu_name"),
        ({"distributed_type": "MEGATRON_LM"}, "expected NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED"),
        ({"compute_environment": "MOON", "num_processes": 2}, "expected LOCAL_MACHINE or AMAZON_SAGEMAKER"),
        ({"ec2_instance_type": "x"}, "SageMaker"),
        ({"distributed_type": "NO", "num_processes": 3}, "means one process, found num_processes: 3"),
        ({"fp16": True, "mixed_precision": "bf16"}, "contradicts mixed_precision: bf16"),
        ({"fp16": "perhaps"}, "fp16: expected true or false"),
        ({"mixed_precision": "fp4"}, "mixed_precision: 'fp4' is not one of 'no', 'bf16', 'fp16', 'fp8'"),
        ({"num_processes": True}, "num_processes: expected a whole number"),
        ({"num_processes": "two"}, "found 'two'"),
        ({"use_cpu": 3}, "use_cpu: expected true or false"),
        ({"gpu_ids": "0,0"}, "gpu_ids: expected all, or different device numbers"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(content: dict[str, object], words: str, tmp_path: Path) -> None:
    (problem,) = read(write(tmp_path, json.dumps(content), "c.json")).problems
    assert words in problem
    (of_yaml,) = read(write(tmp_path, yaml.safe_dump(content))).problems
    assert words.partition("'")[0].partition("{")[0] in of_yaml


def test_all_problems_come_at_once_with_the_file_and_the_nearest_name(tmp_path: Path) -> None:
    path = write(tmp_path, "num_process: 2\nmixed_precison: bf16\nzzz: 1\ndowncast_bf16: true\nuse_cpu: maybe\n")
    problems = read(path).problems
    assert len(problems) == 5
    assert all(str(path) in problem for problem in problems)
    assert "unknown key 'num_process'; did you mean 'num_processes'?" in problems[0]
    assert "did you mean 'mixed_precision'?" in problems[1]
    assert problems[2].endswith("unknown key 'zzz': remove the line")


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("num_processes: 2\ntee: 3\nnum_processes: 4", "c.yaml", "'num_processes' is there 2 times: keep one"),
        ('{"tee": 1, "tee": 1, "tee": 2}', "c.json", "'tee' is there 3 times: keep one"),
        ("a: [", "c.yaml", "not YAML or JSON"),
        ("{", "c.json", "not YAML or JSON"),
        ("- 1", "c.yaml", "found a list"),
        ("12", "c.json", "found a str"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, name: str, words: str) -> None:
    path = write(tmp_path, text, name)
    (problem,) = read(path).problems
    assert words in problem


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (problem,) = read(tmp_path / "no.yaml").problems
    assert "no.yaml: there is no such file (looked from" in problem


@pytest.mark.parametrize("name", ["c.yaml", "c.json"])
def test_an_empty_file_says_nothing(tmp_path: Path, name: str) -> None:
    assert values(write(tmp_path, "", name)) == {}


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"ACCEL_HOME": "/a", "HF_HOME": "/h", "XDG_CACHE_HOME": "/x", "HOME": "/u"}, "/a"),
        ({"HF_HOME": "/h", "XDG_CACHE_HOME": "/x", "HOME": "/u"}, "/h/accel"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/u"}, "/x/huggingface/accel"),
        ({"HOME": "/u"}, "/u/.cache/huggingface/accel"),
    ],
)
def test_the_config_folder_is_the_first_that_is_named(environ: dict[str, str], folder: str) -> None:
    """S102."""
    assert config_folder(environ) == Path(folder)


def test_the_default_file_is_used_if_it_exists(tmp_path: Path) -> None:
    """S102."""
    assert resolve_options([], {"ACCEL_HOME": str(tmp_path)}).file is None
    path = write(tmp_path, "", "default_config.yaml")
    assert resolve_options([], {"ACCEL_HOME": str(tmp_path)}).file == path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\n\tb: 2\n", "line 2, column 1"),
        ("num_processes 2\nuse_cpu: true\n", "line 2, column 8"),
        ("num_processes:2", "expected lines of the form name: value, found a str"),
        ("a: 1 b: 2\n", "mapping values are not allowed here"),
        ("a:\n  b: 1\n c: 2\n", "line 3, column 2"),
        ("a: 1\nb: 'x\nc: 2\n", "line 2, column 4"),
        ("a: [1\nb: 2\n", "line 2, column 2"),
        ("a: @x\n", "found character '@' that cannot start any token"),
        ("a: *x\n", "found undefined alias"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1"),
        ("a: 1\nb: !!python/name:os.x ''\n", "line 2, column 4"),
        ("a: 1\nb: \x01\n", "special characters are not allowed"),
        ("[" * 5000, "too many brackets"),
    ],
)
def test_a_yaml_error_names_the_file_the_line_and_the_column(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    (problem,) = read(path).problems
    assert words in problem
    assert str(path) in problem


def test_a_number_with_a_leading_zero_is_refused(tmp_path: Path) -> None:
    """Feature row S104: YAML 1.1 takes 010 for 8."""
    path = write(tmp_path, "num_machines: 2\nnum_processes: 010\nmain_process_port: 0x10\n")
    one, two = read(path).problems
    assert one == f"config file {path}: num_processes: expected a whole number of at least 1, found '010'"
    assert "main_process_port: expected a port" in two


def test_values_are_the_text_that_stands_there(tmp_path: Path) -> None:
    """YAML 1.1 takes 02:00:00 for 7200, no for false, and a list for what a flag writes with commas."""
    text = "submit_options: {time: 02:00:00, exclusive: }\nmixed_precision: no\nmain_process_ip: 1e3\ngpu_ids: [0, 1]\n"
    assert values(write(tmp_path, text)) == {
        "submit_options": {"time": "02:00:00", "exclusive": ""},
        "mixed_precision": "no",
        "main_process_ip": "1e3",
        "gpu_ids": "0,1",
    }


def test_a_json_error_names_line_and_column(tmp_path: Path) -> None:
    path = write(tmp_path, '{\n "a" 1\n}', "c.json")
    (problem,) = read(path).problems
    assert "not YAML or JSON: " in problem
    assert "line 2, column 6" in problem


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o664, 0o660])
def test_a_file_that_its_owner_or_a_group_may_write_is_followed(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, "num_processes: 2\n")
    path.chmod(mode)
    assert values(path) == {"num_processes": 2}


@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_a_file_that_anybody_may_write_is_refused_with_the_cure(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, "num_processes: 2\n", "my config.yaml")
    path.chmod(mode)
    (problem,) = read(path).problems
    assert "every user of this machine may write to it (mode 0" in problem
    command = problem.split(": run ")[1]
    subprocess.run(command, shell=True, check=True)  # as the user pastes it: its quoting is what is tested
    assert values(path) == {"num_processes": 2}


def test_a_file_system_without_permissions_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """WSL and SMB: chmod changes nothing there, so the file would be refused for ever."""
    path = write(tmp_path, "num_processes: 2\n")
    path.chmod(0o777)
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype="drvfs")]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
    assert values(path) == {"num_processes": 2}
    assert f"accel: warning: config file {path}: every user of this machine may write to it" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_config_of_somebody_else_that_is_named_is_followed(tmp_path: Path) -> None:
    path = write(tmp_path, "num_processes: 2\n")
    os.chown(path, 12345, 12345)
    assert values(path) == {"num_processes": 2}


def test_a_device_is_an_empty_file() -> None:
    assert values(Path("/dev/null")) == {}
