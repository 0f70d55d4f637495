"""A2, A8: jobs that the launcher starts read streams of hundreds of files once, and go on in other worlds."""

import json
import resource
from itertools import chain
from pathlib import Path
from typing import Any

import file_streams
import pytest
from jobs import start
from suite.soak import Cases, in_soak

SCRIPT = Path(file_streams.__file__)
ROWS, TOGETHER = 4, 8
Steps = list[list[int]]


def write(folder: Path, kind: str, files: int) -> None:
    """Files of consecutive numbers called `id`."""
    folder.mkdir(parents=True)
    for file in range(files):
        numbers = range(file * ROWS, (file + 1) * ROWS)
        if kind == "jsonl":
            (folder / f"{file:05d}.jsonl").write_text("".join(json.dumps({"id": one}) + "\n" for one in numbers))
        elif kind == "parquet":
            import pyarrow
            import pyarrow.parquet

            table: Any = pyarrow.table({"id": list(numbers)})
            pyarrow.parquet.write_table(table, folder / f"{file:05d}.parquet")
        else:
            import webdataset

            with webdataset.TarWriter(str(folder / f"{file:05d}.tar")) as writer:
                for one in numbers:
                    writer.write({"__key__": f"{one:06d}", "id.txt": str(one)})


def life(python: str, folder: Path, kind: str, workers: int, size: int, *options: str) -> tuple[Steps, int, str]:
    """The steps of the job that its main process printed, the most open handles of a reader, and what was said."""
    ended = start(SCRIPT, folder, kind, workers, TOGETHER, *options, size=size, python=python).end(110)
    assert ended.code == 0, ended.err
    lines = [line.split() for line in ended.out.splitlines()]
    steps = [list(map(int, line[1:])) for line in lines if line[0] == "step"]
    ((_, handles),) = [line for line in lines if line[0] == "handles"]
    return steps, int(handles), ended.err


@pytest.fixture(autouse=True)
def few_handles() -> Any:
    """The usual limit, which the jobs inherit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "workers"), [("jsonl", 0), pytest.param("parquet", 2, marks=pytest.mark.soak(only=True))]
)
def test_a_job_of_many_files_goes_on_in_any_world(
    tmp_path: Path, kind: str, workers: int, cases: Cases, forking_python: str
) -> None:
    """200 files, or 3,000: begun on 2 ranks, stopped at batch 60, and ended on 1 and 2, in a soak also on 4."""
    files, stop = len(cases(200, 3000)), 60
    write(tmp_path / "job" / "files", kind, files)
    before, handles, _ = life(forking_python, tmp_path / "job", "datasets", workers, 2, "--stop", str(stop))
    assert len(before) == stop
    assert handles < 60
    rests = []
    for size in (1, 2, 4) if len(cases(0, 1)) else (1, 2) if workers == 0 else (1,):
        rest, handles, _ = life(forking_python, tmp_path / "job", "datasets", workers, size)
        assert sorted(chain(*before, *rest)) == [*range(files * ROWS)]
        assert handles < 100  # fewer readers have more of the shards of the job
        rests.append(rest)
    if not workers:
        assert all(rest[:40] == rests[0][:40] for rest in rests)


@pytest.mark.parametrize("kind", ["split tars", *in_soak("tars")])
def test_a_job_of_tars_reads_each_sample_once(tmp_path: Path, kind: str, forking_python: str) -> None:
    """Twenty; shared out by accel, or by `webdataset.split_by_node` and left alone."""
    write(tmp_path / "files", "tar", 20)
    steps, _, said = life(forking_python, tmp_path, kind, 2, 2)
    assert sorted(chain(*steps)) == [*range(20 * ROWS)]
    assert "read again" not in said


@pytest.mark.soak(only=True)
def test_a_job_of_tars_is_ended_by_one_process(tmp_path: Path, forking_python: str) -> None:
    """A8: begun by two, gone on with by one."""
    write(tmp_path / "files", "tar", 20)
    before, _, _ = life(forking_python, tmp_path, "tars", 2, 2, "--stop", "4")
    rest, _, _ = life(forking_python, tmp_path, "tars", 2, 1)
    assert sorted(chain(*before, *rest)) == [*range(20 * ROWS)]
