"""`accel launch --submit sagemaker`: the estimator's arguments, who gets them, and what is refused."""

import json
import subprocess
import sys
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from accel_submit.sagemaker import SageMakerScheduler
from accel_submit.sagemaker_client import start, trainer_arguments

options_of_config = SageMakerScheduler.options_of_config

Run = Callable[..., "subprocess.CompletedProcess[str]"]

FILE = "accel-sagemaker.json"
NEEDED = "role=arn:aws:iam::1:role/me,instance_type=ml.g5.2xlarge,framework_version=2.5.1,py_version=py311"
SAGEMAKER = ("launch", "--submit", "sagemaker")


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    return "code/train.py"


def content(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / FILE).read_text())
    assert isinstance(found, dict)
    return found


def test_the_file_has_the_arguments_of_the_trainer(accel: Run, script: str, tmp_path: Path) -> None:
    line = ("--num_machines", "2", "--mixed_precision", "bf16", "--gradient_accumulation_steps", "4", "--dry_run")
    more = ",max_run=3600,use_spot_instances=true,base_job_name=mine"
    script_arguments = ("--lr", "-0.1", "--name=a b", "-n", "3")
    done = accel(*SAGEMAKER, *line, "--submit_options", NEEDED + more, script, *script_arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / FILE).read_text()
    assert content(tmp_path) == {
        "submit": "written by accel launch --submit sagemaker",
        "hyperparameters": {"lr": "-0.1", "name": "a b", "n": "3"},
        "environment": {"ACCEL_MIXED_PRECISION": "bf16", "ACCEL_GRADIENT_ACCUMULATION_STEPS": "4"},
        "torchrun": True,
        "role": "arn:aws:iam::1:role/me",
        "compute": {"instance_type": "ml.g5.2xlarge", "enable_managed_spot_training": True, "instance_count": 2},
        "image": {"version": "2.5.1", "py_version": "py311"},
        "stopping_condition": {"max_runtime_in_seconds": 3600},
        "base_job_name": "mine",
        "source_code": {"source_dir": str(tmp_path / "code"), "entry_script": "train.py"},
    }


def test_tables_and_the_account_have_their_places(accel: Run, script: str, tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("channel_name\tdata_location\ntrain\ts3://b/train\nval\ts3://b/val\n")
    (tmp_path / "metrics.tsv").write_text("metric_name\tmetric_regex\nloss\tloss: ([0-9.]+)\n")
    options = f"{NEEDED},inputs_file=in.tsv,metrics_file=metrics.tsv,profile=p,region=eu-west-1,source_dir=."
    done = accel(*SAGEMAKER, "--dry_run", "--submit_options", options, script)
    assert done.returncode == 0, done.stderr
    found = content(tmp_path)
    assert found["inputs"] == {"train": "s3://b/train", "val": "s3://b/val"}
    assert found["session"] == {"profile_name": "p", "region_name": "eu-west-1"}
    assert found["metrics"] == {"loss": "loss: ([0-9.]+)"}
    assert found["source_code"] == {"source_dir": str(tmp_path), "entry_script": script}


def test_one_machine_without_gpus_has_no_torchrun(accel: Run, script: str, tmp_path: Path) -> None:
    options = "role=r,image_uri=me/image,instance_type=ml.m5.large"
    assert accel(*SAGEMAKER, "--cpu", "--dry_run", "--submit_options", options, script).returncode == 0
    found = content(tmp_path)
    assert (found["torchrun"], found["training_image"]) == (False, "me/image")
    assert found["environment"] == {"ACCEL_USE_CPU": "1"}
    done = accel(*SAGEMAKER, "--num_machines", "2", "--dry_run", "--submit_options", options, script)
    assert "2 machines of type ml.m5.large: SageMaker connects machines with GPUs only" in done.stderr


def test_without_the_client_it_is_said_how_to_get_it(accel: Run, script: str) -> None:
    if find_spec("sagemaker") is not None:
        pytest.skip("the client is installed")
    done = accel(*SAGEMAKER, "--submit_options", NEEDED, script)
    assert done.returncode == 0, done.stderr
    assert "sagemaker is not installed, so nothing was submitted" in done.stderr
    assert "-m accel_submit.sagemaker_client accel-sagemaker.json" in done.stderr


def test_what_is_missing_is_asked_for_by_name_in_one_error(accel: Run, script: str, tmp_path: Path) -> None:
    done = accel(*SAGEMAKER, script)
    assert done.returncode == 2
    assert "lacks role, instance_type, framework_version, py_version, which SageMaker needs" in done.stderr
    assert done.stderr.count("\n") == 1
    done = accel(*SAGEMAKER, "--submit_options", "image_uri=me/image", script)
    assert "lacks role, instance_type, which SageMaker needs" in done.stderr
    assert not (tmp_path / FILE).exists()


def test_all_that_is_wrong_is_told_at_once_and_nothing_is_written(accel: Run, script: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}")
    (tmp_path / "bad.tsv").write_text("a\tb\n")
    options = "rol=x,instance_type=ml.g5.xlarge,max_run=soon,instance_count=3,source_dir=other,inputs_file=bad.tsv"
    line = ("--num_machines", "2", "-n", "4", "--tee", "1", "--max_restarts", "2", "--submit_options", options)
    done = accel(*SAGEMAKER, *line, script, "pos", "--flag", "--x", "1", "2", "--x", "3")
    assert (done.returncode, done.stdout) == (2, "")
    for words in (
        "'rol' is none of those for sagemaker; did you mean 'role'?",
        "lacks role, framework_version, py_version",
        "max_run=soon: expected a whole number",
        "instance_count=3 contradicts --num_machines 2",
        "/other: the script code/train.py is not in it",
        "inputs_file=bad.tsv: expected a file of two columns",
        "--num_processes 4: SageMaker starts a process for each GPU of the instance_type; leave it out",
        "--tee 1: SageMaker starts the processes with torchrun",
        "--max_restarts 2: SageMaker starts",
        "as --name value, which does not stand for 'pos', '--flag', '2', '--x=3', or only for one of a name",
        "is there already, and accel launch has not written it",
    ):
        assert words in done.stderr
    assert (tmp_path / FILE).read_text() == "{}"


def test_what_a_file_says_for_other_places_is_left_out_with_a_word(accel: Run, script: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("machine_rank: 0\ngrace_period: 9\nmixed_precision: bf16\ngpu_ids: 2,3\n")
    line = ("--config_file", "c.yaml", "--dry_run", "--submit_options", NEEDED)
    done = accel(*SAGEMAKER, *line, script)
    assert done.returncode == 0, done.stderr
    assert "--grace_period 9, which the config file says, is left out" in done.stderr
    assert "machine_rank" not in done.stderr
    assert content(tmp_path)["environment"] == {"ACCEL_MIXED_PRECISION": "bf16"}


def test_a_module_and_a_program_are_refused(accel: Run, script: str) -> None:
    assert "SageMaker starts a Python file" in accel(*SAGEMAKER, "-m", "--submit_options", NEEDED, "train").stderr


ACCELERATE: dict[object, object] = {
    "compute_environment": "AMAZON_SAGEMAKER",
    "distributed_type": "DATA_PARALLEL",
    "ec2_instance_type": "ml.p3.16xlarge",
    "iam_role_name": "me",
    "image_uri": None,
    "profile": "default",
    "region": "us-east-1",
    "num_machines": 2,
    "base_job_name": "accelerate-sagemaker-1",
    "pytorch_version": "2.5",
    "py_version": "py311",
    "sagemaker_inputs_file": "in.tsv",
    "sagemaker_metrics_file": None,
    "additional_args": {"max_run": 60, "use_spot_instances": False},
}


def test_a_config_file_of_accelerate_becomes_submit_options() -> None:
    assert options_of_config(ACCELERATE) == (
        {
            "instance_type": "ml.p3.16xlarge",
            "role": "me",
            "profile": "default",
            "region": "us-east-1",
            "instance_count": "2",
            "base_job_name": "accelerate-sagemaker-1",
            "framework_version": "2.5",
            "py_version": "py311",
            "inputs_file": "in.tsv",
            "max_run": "60",
        },
        [],
    )


def test_a_launch_with_a_config_file_of_accelerate_writes_the_job(accel: Run, script: str, tmp_path: Path) -> None:
    """S111."""
    (tmp_path / "in.tsv").write_text("channel_name\tdata_location\ntrain\ts3://bucket/train\n")
    (tmp_path / "c.json").write_text(json.dumps(ACCELERATE))
    done = accel("launch", "--config_file", "c.json", "--dry_run", script)
    assert done.returncode == 0, done.stderr
    found = content(tmp_path)
    assert found["compute"] == {"instance_type": "ml.p3.16xlarge", "instance_count": 2}
    assert (found["role"], found["stopping_condition"]) == ("me", {"max_runtime_in_seconds": 60})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"transformers_version": "4.17.0"}, "transformers_version is not supported"),
        ({"additional_args": {"max_run": {}}}, ""),
        ({"additional_args": "x"}, "expected names with values"),
    ],
)
def test_what_a_config_file_of_accelerate_says_beyond_is_told(more: dict[object, object], words: str) -> None:
    _, problems = options_of_config({**ACCELERATE, **more})
    assert [words in problem for problem in problems] == ([True] if words else [])


class Part:
    """What a part of the client is made of; it remembers what it was given."""

    def __init__(self, **arguments: Any) -> None:
        self.__dict__.update(arguments)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The trainers that a stand-in of the client of version 3 has started."""
    found: list[Any] = []

    class ModelTrainer(Part):
        def with_metric_definitions(self, metrics: list[Part]) -> None:
            self.metrics = metrics

        def train(self, input_data_config: list[Part] | None, wait: bool, logs: bool) -> None:
            if self.__dict__["role"] == "nobody":
                raise ValueError("no such role")
            self.inputs, self.waited = input_data_config, wait
            self._latest_training_job = types.SimpleNamespace(training_job_name="mine-2026")
            found.append(self)

    parts = ("Compute", "SourceCode", "StoppingCondition", "InputData")
    modules: dict[str, dict[str, Any]] = {
        "boto3": {"Session": lambda **named: types.SimpleNamespace(region_name=named.get("region_name", "here"))},
        "sagemaker": {},
        "sagemaker.train": {"ModelTrainer": ModelTrainer},
        "sagemaker.train.distributed": {"Torchrun": Part},
        "sagemaker.train.configs": dict.fromkeys(parts, Part),
        "sagemaker.core": {},
        "sagemaker.core.shapes": {"MetricDefinition": Part},
        "sagemaker.core.image_uris": {"retrieve": lambda **about: f"image for {about['version']} in {about['region']}"},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(members, __path__=[])
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_the_client_gets_what_the_file_says_and_is_not_waited_for(
    accel: Run, script: str, tmp_path: Path, started: list[Any]
) -> None:
    (tmp_path / "in.tsv").write_text("channel_name\tdata_location\ntrain\ts3://b/train\n")
    (tmp_path / "metrics.tsv").write_text("metric_name\tmetric_regex\nloss\tloss: ([0-9.]+)\n")
    options = f"{NEEDED},inputs_file=in.tsv,metrics_file=metrics.tsv,max_run=60"
    assert accel(*SAGEMAKER, "--dry_run", "--submit_options", options, script, "--lr", "1").returncode == 0
    assert start(content(tmp_path)) == "mine-2026"
    (trainer,) = started
    assert (trainer.compute.instance_type, trainer.stopping_condition.max_runtime_in_seconds) == ("ml.g5.2xlarge", 60)
    assert (trainer.training_image, trainer.hyperparameters) == ("image for 2.5.1 in here", {"lr": "1"})
    assert [(channel.channel_name, channel.data_source) for channel in trainer.inputs] == [("train", "s3://b/train")]
    assert [(metric.name, metric.regex) for metric in trainer.metrics] == [("loss", "loss: ([0-9.]+)")]
    assert (trainer.waited, hasattr(trainer, "distributed"), hasattr(trainer, "submit")) == (False, True, False)


def test_the_words_of_the_client_are_told(
    accel: Run, script: str, tmp_path: Path, silent_environ: dict[str, str]
) -> None:
    """By a package of that name that raises."""
    (tmp_path / "sagemaker").mkdir()
    (tmp_path / "sagemaker" / "__init__.py").write_text("")
    (tmp_path / "boto3.py").write_text("def Session(): raise ValueError('no such role')")
    done = accel(
        *SAGEMAKER,
        "--submit_options",
        NEEDED,
        script,
        environ={"PYTHONPATH": f"{tmp_path}:{silent_environ['PYTHONPATH']}"},
    )
    assert done.returncode == 2
    assert "\nValueError: no such role\naccel: error: " in done.stderr


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_version_3_takes_the_file(
    accel: Run, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("sagemaker.train")
    more = "max_run=60,use_spot_instances=yes,max_wait=90,output_path=s3://b/o,volume_size=50,input_mode=File"
    more += ",checkpoint_s3_uri=s3://b/c,enable_network_isolation=no,base_job_name=mine,keep_alive_period_in_seconds=9"
    line = ("--num_machines", "2", "--mixed_precision", "bf16", "--dry_run", "--submit_options", f"{NEEDED},{more}")
    assert accel(*SAGEMAKER, *line, script, "--lr", "1").returncode == 0
    arguments = trainer_arguments(content(tmp_path), "eu-west-1")
    assert "pytorch-training:2.5.1" in arguments["training_image"]
    # Its last step asks AWS for the role; what comes before refuses any argument that it does not know.
    monkeypatch.setattr(client.ModelTrainer, "model_post_init", lambda self, context: None)
    trainer = client.ModelTrainer(**arguments)
    assert (trainer.compute.instance_count, trainer.compute.volume_size_in_gb) == (2, 50)
    assert trainer.compute.enable_managed_spot_training is True
    assert trainer.stopping_condition.max_wait_time_in_seconds == 90
    assert (trainer.source_code.entry_script, trainer.hyperparameters) == ("train.py", {"lr": "1"})
    assert type(trainer.distributed).__name__ == "Torchrun"
