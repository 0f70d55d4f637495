"""Records a run by a client, offline, in the working directory, or reads what it has left there: NAME write|read."""

import csv
import json
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accel import Accelerator

Found = tuple[dict[str, list[list[float]]], Any]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "aim": {"system_tracking_interval": None, "capture_terminal_logs": False, "log_system_params": False},
    "clearml": {"auto_connect_frameworks": False, "auto_resource_monitoring": False, "auto_connect_streams": False},
    "comet_ml": {"online": False},
    "dvclive": {"dir": "live", "save_dvc_exp": False},
    "swanlab": {"mode": "local", "log_dir": "lab"},
    "trackio": {"embed": False, "auto_log_cpu": False},
    "wandb": {"mode": "offline"},
}
#: what takes no tables
NO_TABLES = ("aim", "dvclive", "swanlab")


def write(name: str) -> None:
    """Three metrics of 100 steps, a configuration, an image, and a table if the client takes tables."""
    accelerator = Accelerator(cpu=True, log_with=name, project_dir="logs")
    accelerator.init_trackers("project", {"lr": 0.1, "model": {"layers": 2}}, {name: ARGUMENTS.get(name, {})})
    for step in range(100):
        accelerator.log({"loss": 1 / (step + 1), "rate": np.float32(step), "deep": {"a": step * 2}}, step=step)
    accelerator.log_images({"image": [np.zeros((4, 4, 3), np.uint8)]}, step=100)
    if name not in NO_TABLES:
        accelerator.log_table("table", ["a"], [[1]], step=100)
    lost = [delivery.lost for delivery in accelerator.tracking._deliveries]
    accelerator.end_training()
    assert not any(lost), lost


def grouped(points: Iterator[tuple[str, float, float]]) -> dict[str, list[list[float]]]:
    """The step and value of each point, by the name of its metric."""
    found: dict[str, list[list[float]]] = {}
    for name, step, value in points:
        found.setdefault(name, []).append([step, value])
    return found


def read_aim() -> Found:
    """From the index that `aim up` makes, and shows."""
    aim: Any = import_module("aim")
    repository = aim.Repo("logs")
    (name,) = repository.list_all_runs()
    import_module("aim.sdk.index_manager").RepoIndexManager.get_index_manager(repository).index(name)
    run = aim.Run(name, repo=repository, read_only=True)
    context = import_module("aim.storage.context").Context({})
    assert run.get_image_sequence("image", context) is not None
    tables = {metric.name: metric.dataframe() for metric in run.metrics()}
    found = {
        path: [list(row) for row in zip(table["step"], table["value"], strict=True)] for path, table in tables.items()
    }
    return json.loads(json.dumps(found, default=float)), run["hparams"]


def read_clearml() -> Found:
    """From the folder that `clearml.Task.import_offline_session` takes."""
    (folder,) = (path.parent for path in Path.cwd().rglob("metrics.jsonl"))
    events = [event for line in (folder / "metrics.jsonl").read_text().splitlines() for event in json.loads(line)]
    scalars = [event for event in events if event["type"] == "training_stats_scalar"]
    named = {"loss/loss": "loss", "rate/rate": "rate"}
    paths = [f"{event['metric']}/{event['variant']}" for event in scalars]
    points = (
        (named.get(path, path), event["iter"], event["value"]) for path, event in zip(paths, scalars, strict=True)
    )
    assert {event["type"] for event in events} >= {"plot", "training_debug_image"}, "an image and a table"
    text = json.loads((folder / "task.json").read_text())["configuration"]["General"]["value"]
    return grouped(points), import_module("clearml.utilities.pyhocon").ConfigFactory.parse_string(
        text
    ).as_plain_ordered_dict()


def read_comet_ml() -> Found:
    """From the archive that `comet upload` takes."""
    (path,) = Path("comet").glob("*.zip")
    with zipfile.ZipFile(path) as archive:
        lines = [json.loads(line) for line in archive.read("messages.json").splitlines()]
    metrics = [line["payload"]["metric"] for line in lines if line["type"] == "metric_msg"]
    settings = [line["payload"]["param"] for line in lines if line["type"] == "parameter_msg"]
    own = [one for one in metrics if not one["metricName"].startswith(("sys.", "process "))]  # not of the machine
    points = ((one["metricName"], one["step"], one["metricValue"]) for one in own)
    values = {one["paramName"]: one["paramValue"] for one in settings}
    return grouped(points), {"lr": values["lr"], "model": {"layers": values["model/layers"]}}


def read_dvclive() -> Found:
    """From the files that DVC draws."""
    folder = Path("live/plots/metrics")
    found = {}
    for path in folder.rglob("*.tsv"):
        with path.open() as file:
            rows = [[float(row["step"]), float(row[path.stem])] for row in csv.DictReader(file, delimiter="\t")]
        found[str(path.relative_to(folder).with_suffix(""))] = rows
    assert Path("live/plots/images/image/100-0.png").is_file()
    return found, yaml.safe_load(Path("live/params.yaml").read_text())


def read_swanlab() -> Found:
    """From the folder that `swanlab watch` shows."""
    (run,) = Path("lab").glob("run-*")
    store: Any = import_module("swanlab.sdk.internal.core_python.store").DataStoreReader()
    kinds: Any = import_module("swanlab.proto.swanlab.record.v1.record_pb2")
    store.open(next(run.glob("*.swanlab")))
    records = [kinds.Record.FromString(data) for data in store]
    scalars = [record.scalar for record in records if record.WhichOneof("record_type") == "scalar"]
    points = ((one.key, one.step, one.value.number) for one in scalars)
    assert list(run.glob("media/image/*.png"))
    settings = yaml.safe_load((run / "files" / "config.yaml").read_text())
    return grouped(points), {name: entry["value"] for name, entry in settings.items()}


def read_trackio() -> Found:
    """By Trackio's storage."""
    storage: Any = import_module("trackio.sqlite_storage").SQLiteStorage
    (run,) = storage.get_runs("project")
    lines = storage.get_logs("project", run)
    points = (
        (name, line["step"], value) for line in lines for name, value in line.items() if isinstance(value, float | int)
    )
    found = grouped((name, step, value) for name, step, value in points if name != "step")
    assert any("image/0" in line for line in lines)
    assert any("table" in line for line in lines)
    return found, {name: value for name, value in storage.get_run_config("project", run).items() if name[0] != "_"}


READERS = {
    "aim": read_aim,
    "clearml": read_clearml,
    "comet_ml": read_comet_ml,
    "dvclive": read_dvclive,
    "swanlab": read_swanlab,
    "trackio": read_trackio,
}

if __name__ == "__main__":
    if sys.argv[2] == "write":
        write(sys.argv[1])
    else:
        Path("found.json").write_text(json.dumps(READERS[sys.argv[1]]()))
