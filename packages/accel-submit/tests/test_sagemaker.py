"""`accel launch --submit sagemaker`: the estimator's arguments, who gets them, and what is refused."""

import inspect
import json
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from accel_state.errors import CannotRun
from accel_submit.sagemaker_client import start, trainer_arguments
from accel_submit.sagemaker_settings import ESTIMATOR, options_of_config

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


def test_the_file_has_the_arguments_of_the_estimator(accel: Run, script: str, tmp_path: Path) -> None:
    line = ("--num_machines", "2", "--mixed_precision", "bf16", "--gradient_accumulation_steps", "4", "--dry_run")
    more = ",max_run=3600,use_spot_instances=true,base_job_name=mine"
    script_arguments = ("--lr", "-0.1", "--name=a b", "-n", "3")
    done = accel(*SAGEMAKER, *line, "--submit_options", NEEDED + more, script, *script_arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / FILE).read_text()
    assert content(tmp_path)["estimator"] == {
        "entry_point": "train.py",
        "source_dir": str(tmp_path / "code"),
        "hyperparameters": {"lr": "-0.1", "name": "a b", "n": "3"},
        "environment": {"ACCEL_MIXED_PRECISION": "bf16", "ACCEL_GRADIENT_ACCUMULATION_STEPS": "4"},
        "distribution": {"torch_distributed": {"enabled": True}},
        "role": "arn:aws:iam::1:role/me",
        "instance_type": "ml.g5.2xlarge",
        "framework_version": "2.5.1",
        "py_version": "py311",
        "base_job_name": "mine",
        "max_run": 3600,
        "use_spot_instances": True,
        "instance_count": 2,
    }


def test_tables_and_the_account_have_their_places(accel: Run, script: str, tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("channel_name\tdata_location\ntrain\ts3://b/train\nval\ts3://b/val\n")
    (tmp_path / "metrics.tsv").write_text("metric_name\tmetric_regex\nloss\tloss: ([0-9.]+)\n")
    options = f"{NEEDED},inputs_file=in.tsv,metrics_file=metrics.tsv,profile=p,region=eu-west-1,source_dir=."
    done = accel(*SAGEMAKER, "--dry_run", "--submit_options", options, script)
    assert done.returncode == 0, done.stderr
    found = content(tmp_path)
    assert found["inputs"] == {"train": "s3://b/train", "val": "s3://b/val"}
    assert found["session"] == {"profile": "p", "region": "eu-west-1"}
    estimator = found["estimator"]
    assert estimator["metric_definitions"] == [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]
    assert (estimator["source_dir"], estimator["entry_point"]) == (str(tmp_path), script)


def test_one_machine_without_gpus_has_no_torchrun(accel: Run, script: str, tmp_path: Path) -> None:
    options = "role=r,image_uri=me/image,instance_type=ml.m5.large"
    assert accel(*SAGEMAKER, "--cpu", "--dry_run", "--submit_options", options, script).returncode == 0
    estimator = content(tmp_path)["estimator"]
    assert "distribution" not in estimator
    assert estimator["environment"] == {"ACCEL_USE_CPU": "1"}
    done = accel(*SAGEMAKER, "--num_machines", "2", "--dry_run", "--submit_options", options, script)
    assert "2 machines of type ml.m5.large: SageMaker connects machines with GPUs only" in done.stderr


def test_without_the_client_it_is_said_how_to_get_it(accel: Run, script: str) -> None:
    if find_spec("sagemaker") is not None:
        pytest.skip("the client is installed")
    done = accel(*SAGEMAKER, "--submit_options", NEEDED, script)
    assert done.returncode == 0, done.stderr
    assert "the client is not installed (pip install sagemaker)" in done.stderr


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
        "'rol' is none of those for SageMaker; did you mean 'role'?",
        "lacks role, framework_version, py_version",
        "max_run=soon: expected a whole number",
        "instance_count=3 contradicts --num_machines 2",
        "source_dir=other: the script code/train.py is not in it",
        "inputs_file=bad.tsv: expected two columns",
        "--num_processes 4: SageMaker starts a process for each GPU",
        "--tee 1: SageMaker starts the processes with torchrun",
        "--max_restarts 2: SageMaker starts",
        "'pos' belongs to no name; --flag has no value; '2' belongs to no name; --x is given twice",
        "is there already, and accel launch has not written it",
    ):
        assert words in done.stderr
    assert (tmp_path / FILE).read_text() == "{}"


def test_what_a_file_says_for_other_places_is_left_out_with_a_word(accel: Run, script: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("machine_rank: 0\ngrace_period: 9\nmixed_precision: bf16\n")
    line = ("--config_file", "c.yaml", "--dry_run", "--submit_options", NEEDED)
    done = accel(*SAGEMAKER, *line, script)
    assert done.returncode == 0, done.stderr
    assert "--grace_period 9, which the config file says, is left out" in done.stderr
    assert "machine_rank" not in done.stderr
    assert content(tmp_path)["estimator"]["environment"] == {"ACCEL_MIXED_PRECISION": "bf16"}


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
    "additional_args": {"max_run": 60, "disable_profiler": False},
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
            "disable_profiler": "False",
        },
        [],
    )


def test_s111_a_launch_with_a_config_file_of_accelerate_writes_the_job(accel: Run, script: str, tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("channel_name\tdata_location\ntrain\ts3://bucket/train\n")
    (tmp_path / "c.json").write_text(json.dumps(ACCELERATE))
    done = accel("launch", "--config_file", "c.json", "--dry_run", script)
    assert done.returncode == 0, done.stderr
    estimator = content(tmp_path)["estimator"]
    assert (estimator["instance_type"], estimator["instance_count"], estimator["role"]) == ("ml.p3.16xlarge", 2, "me")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"transformers_version": "4.17.0"}, "transformers_version: '4.17.0' is not supported"),
        ({"additional_args": {"subnets": ["a"]}}, "'subnets' is not supported"),
        ({"additional_args": {"max_run": {}}}, ""),
        ({"additional_args": "x"}, "expected names with values"),
        ({"region": "a,b"}, "expected one word"),
    ],
)
def test_what_a_config_file_of_accelerate_says_beyond_is_told(more: dict[object, object], words: str) -> None:
    _, problems = options_of_config({**ACCELERATE, **more})
    assert [words in problem for problem in problems] == ([True] if words else [])


@pytest.fixture
def fake_client(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A client of version 2 that notes what it is given."""
    noted: dict[str, Any] = {}

    class PyTorch:
        latest_training_job = types.SimpleNamespace(name="mine-2026")

        def __init__(self, **arguments: Any) -> None:
            noted["estimator"] = arguments

        def fit(self, inputs: Mapping[str, str] | None, wait: bool) -> None:
            if noted.get("refuse"):
                raise ValueError("no such role\n in this account")
            noted["fit"] = (inputs, wait)

    top, inner = types.ModuleType("sagemaker"), types.ModuleType("sagemaker.pytorch")
    top.__path__ = []
    inner.PyTorch = PyTorch  # type: ignore[attr-defined]
    for module in (top, inner):
        module.__spec__ = types.SimpleNamespace(name=module.__name__)  # type: ignore[assignment]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return noted


def test_the_client_gets_what_the_file_says_and_is_not_waited_for(fake_client: dict[str, Any]) -> None:
    assert start({"estimator": {"role": "r"}, "inputs": {"train": "s3://b"}}) == "mine-2026"
    assert fake_client == {"estimator": {"role": "r"}, "fit": ({"train": "s3://b"}, False)}


def test_the_words_of_the_client_are_told(fake_client: dict[str, Any]) -> None:
    fake_client["refuse"] = True
    with pytest.raises(CannotRun, match="refuses: ValueError: no such role in this account"):
        start({"estimator": {"role": "r"}})


@pytest.mark.filterwarnings("ignore")
def test_the_estimator_of_version_2_has_every_argument() -> None:
    client = pytest.importorskip("sagemaker.pytorch")
    taken: set[str] = set()
    for one in client.PyTorch.__mro__:
        taken |= set(inspect.signature(one.__init__).parameters)
    ours = {"entry_point", "hyperparameters", "environment", "distribution", "metric_definitions"}
    assert ours | set(ESTIMATOR) <= taken


@pytest.mark.filterwarnings("ignore")
def test_the_estimator_of_version_2_takes_the_file(accel: Run, script: str, tmp_path: Path) -> None:
    client = pytest.importorskip("sagemaker.pytorch")
    assert accel(*SAGEMAKER, "--num_machines", "2", "--dry_run", "--submit_options", NEEDED, script).returncode == 0
    session = types.SimpleNamespace(
        boto_region_name="eu-west-1", config=None, local_mode=False, sagemaker_config={}, default_bucket_prefix=None
    )
    arguments = content(tmp_path)["estimator"]
    estimator = client.PyTorch(**{**arguments, "sagemaker_session": session})
    assert estimator.instance_count == 2
    assert estimator.hyperparameters()["sagemaker_torch_distributed_enabled"] == "true"


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_version_3_takes_the_file(
    accel: Run, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("sagemaker.train")
    more = "max_run=60,use_spot_instances=yes,max_wait=90,output_path=s3://b/o,volume_size=50,input_mode=File"
    more += ",checkpoint_s3_uri=s3://b/c,enable_network_isolation=no,base_job_name=mine,keep_alive_period_in_seconds=9"
    line = ("--num_machines", "2", "--mixed_precision", "bf16", "--dry_run", "--submit_options", f"{NEEDED},{more}")
    assert accel(*SAGEMAKER, *line, script, "--lr", "1").returncode == 0
    arguments = trainer_arguments(content(tmp_path)["estimator"], "eu-west-1")
    assert "pytorch-training:2.5.1" in arguments["training_image"]
    # Its last step asks AWS for the role; what comes before refuses any argument that it does not know.
    monkeypatch.setattr(client.ModelTrainer, "model_post_init", lambda self, context: None)
    trainer = client.ModelTrainer(**arguments)
    assert (trainer.compute.instance_count, trainer.compute.volume_size_in_gb) == (2, 50)
    assert trainer.compute.enable_managed_spot_training is True
    assert trainer.stopping_condition.max_wait_time_in_seconds == 90
    assert (trainer.source_code.entry_script, trainer.hyperparameters) == ("train.py", {"lr": "1"})
    assert type(trainer.distributed).__name__ == "Torchrun"
    with pytest.raises(CannotRun, match="submit option code_location: the client of version 3 has no such setting"):
        trainer_arguments({"code_location": "s3://x"}, "eu-west-1")
