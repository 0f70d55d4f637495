"""`accel config default`, `update` and `show`, from the shell's side."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from accel_launch.cli.launch_command import resolve_options
from accel_launch.cli.launch_option import LaunchOption
from accel_launch.cli.option_types import COUNT, DEVICES, INTERVAL, NUMBER, PAIRS, PORT, SWITCH, Value, as_text
from accel_launch.cli.options import OPTIONS, LaunchSettings
from accel_launch.config.config_file import config_folder
from accel_launch.config.config_show import setting_lines
from accel_launch.config.config_writer import file_text, write_config
from accel_launch.job.schedulers import BROUGHT
from accel_state.errors import CannotRun
from hypothesis import given, settings
from hypothesis import strategies as st

Run = Callable[..., "subprocess.CompletedProcess[str]"]

OF_ACCELERATE = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
fp16: true
gpu_ids: null
main_process_port: 29500
machine_rank: 0
num_machines: 1
num_processes: 4
rdzv_backend: static
tpu_env: []
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Where the command writes when no file is named."""
    return tmp_path / "no-config" / "default_config.yaml"


def test_default_writes_what_was_said_and_a_second_time_the_same(accel_program: Run, written: Path) -> None:
    for _ in range(2):
        done = accel_program("config", "default", "--num_processes", "2", "--mixed-precision", "bf16", "--no-cpu")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[:2] == [f"written: {written}", "try it:  accel test"]
        assert yaml.safe_load(written.read_text()) == {"num_processes": 2, "use_cpu": False, "mixed_precision": "bf16"}
    assert list(written.parent.iterdir()) == [written]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ([], 3),
        (["--gpu_ids", "0,2"], 2),
        (["--gpu_ids", "all", "--num_machines", "2"], 6),
        (["-n", "1"], 1),
        (["--cpu"], None),
    ],
)
def test_default_starts_one_process_for_each_gpu(
    accel: Run, written: Path, options: list[str], count: int | None
) -> None:
    done = accel("config", "default", *options, environ={"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert done.returncode == 0
    assert yaml.safe_load(written.read_text()).get("num_processes") == count


def test_default_replaces_another_file_only_if_told(accel: Run, tmp_path: Path) -> None:
    path = tmp_path / "my c.yaml"
    path.write_text("num_processes: 7\n")
    done = accel("config", "default", "-n", "2", "--config_file", str(path))
    assert done.returncode == 2
    assert done.stderr == (
        f"accel: error: {path} is there already, and says something else: move it away, or add --overwrite\n"
    )
    assert path.read_text() == "num_processes: 7\n"
    done = accel("config", "default", "--overwrite", "-n", "2", environ={"ACCEL_CONFIG_FILE": str(path)})
    assert done.returncode == 0
    assert yaml.safe_load(path.read_text()) == {"num_processes": 2}
    assert f"accel test --config_file '{path}'" in accel("config", "default", "-n2", "--config_file", str(path)).stdout


def test_default_refuses_what_has_no_place_in_a_file(accel: Run, written: Path) -> None:
    for option in ("--dry_run", "--module"):
        done = accel("config", "default", option, "-n", "2")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{option} is not an option of accel config default" in done.stderr
    assert "unexpected extra argument (train.py)" in accel("config", "default", "-n", "2", "train.py").stderr
    assert "--num_processes: expected a whole number" in accel("config", "default", "-n", "0").stderr
    assert not written.exists()


def test_without_a_terminal_questions_are_refused_with_their_flags(accel: Run) -> None:
    """S101."""
    done = accel("config")
    assert (done.returncode, done.stdout) == (2, "")
    assert "accel config default --num_processes 2 --mixed_precision bf16" in done.stderr
    assert "-n is not an option of accel config ask" in accel("config", "-n", "2").stderr


def test_update_rewrites_a_file_of_accelerate_and_keeps_the_old_one(accel: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(OF_ACCELERATE)
    before = resolve_options(["--config_file", str(path)], {}).settings
    done = accel("config", "update", "--config_file", "c.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:] == [
        "dropped, for they set nothing here: compute_environment, debug, downcast_bf16, gpu_ids, tpu_env",
    ]
    assert (tmp_path / "c.yaml.bak").read_text() == OF_ACCELERATE
    content = yaml.safe_load(path.read_text())
    assert set(content) <= {option.key for option in OPTIONS}
    assert resolve_options(["--config_file", str(path)], {}).settings == before
    assert "nothing was written" in accel("config", "update", "--config_file", "c.yaml").stdout
    path.write_text("distributed_type: 'NO'\n")
    assert "c.yaml.bak is there already" in accel("config", "update", "--config_file", "c.yaml").stderr
    assert path.read_text() == "distributed_type: 'NO'\n"


def test_update_refuses_what_accel_cannot_do_and_leaves_the_file_alone(accel: Run, tmp_path: Path) -> None:
    text = "downcast_bf16: true\ntpu_name: pod\n"
    (tmp_path / "c.yaml").write_text(text)
    done = accel("config", "update", "--config_file", "c.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("accel: error: 2 problems\n")
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
    assert (tmp_path / "c.yaml").read_text() == text


@pytest.mark.parametrize("named", [[], ["--config_file", "no such.yaml"]])
def test_update_without_a_file_names_the_path_and_what_makes_one(accel: Run, written: Path, named: list[str]) -> None:
    done = accel("config", "update", *named)
    assert (done.returncode, done.stdout) == (2, "")
    path, option = ("no such.yaml", " --config_file 'no such.yaml'") if named else (written, "")
    assert done.stderr == (
        f"accel: error: there is no config file {path} to update: accel config default{option} makes one\n"
    )


def test_update_of_a_file_that_cannot_be_read_names_it(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: [")
    assert "config file c.yaml: not YAML or JSON: " in accel("config", "update", "--config_file", "c.yaml").stderr


def test_the_help_of_a_command_is_of_that_command(accel: Run) -> None:
    update, show, default = (accel("config", name, "--help").stdout for name in ("update", "show", "default"))
    for name, text in (("update", update), ("show", show), ("default", default)):
        assert text.startswith(f"Usage: accel config {name} ")
        assert "--config_file FILE" in text
    assert "--num_processes" not in update
    assert ("--origin" in show, "--overwrite" in show, "--dry_run" in show) == (True, False, True)
    assert ("--origin" in default, "--overwrite" in default, "--dry_run" in default) == (False, True, False)


def test_show_prints_lines_that_are_a_config_file_themselves(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("num_processes: 2\ntee: 1\nsubmit_options: {partition: gpu}\n")
    done = accel("config", "show", "--origin", "--config_file", "c.yaml", environ={"ACCEL_MIXED_PRECISION": "no"})
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "num_processes: 2  # config file c.yaml",
        "mixed_precision: 'no'  # environment ACCEL_MIXED_PRECISION",
        "# config_file: c.yaml  # flag",
        "use_cpu: false  # default",
    ):
        assert line in done.stdout.splitlines()
    (tmp_path / "again.yaml").write_text(done.stdout)
    again = accel("config", "show", "--config_file", "again.yaml").stdout
    assert yaml.safe_load(again) == yaml.safe_load(done.stdout)


def test_show_has_words_for_a_misspelt_variable_and_a_misspelt_key(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("mixed_precison: bf16\n")
    done = accel("config", "show", "--config_file", "c.yaml", environ={"ACCEL_NUM_PROCESES": "2"})
    assert done.returncode == 2
    assert "did you mean ACCEL_NUM_PROCESSES?" in done.stderr
    assert "did you mean 'mixed_precision'?" in done.stderr


def test_an_unknown_command_names_the_nearest_and_the_help_lists_every_key(accel: Run) -> None:
    assert "No such command 'updat'. Did you mean 'update'?" in accel("config", "updat").stderr
    words = "".join(accel("config", "default", "-h").stdout.split())
    assert all(f"file:{option.key}" in words for option in OPTIONS if option.key)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("num_processes: 1\n")
    link.symlink_to(real)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CannotRun, match="No space left"):
            write_config(link, "num_processes: 2\n")
    assert real.read_text() == "num_processes: 1\n"
    assert sorted(tmp_path.iterdir()) == [link, real]
    write_config(link, "num_processes: 2\n")
    assert (link.is_symlink(), real.read_text()) == (True, "num_processes: 2\n")


def test_nobody_else_may_write_to_a_file_that_was_written(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_config(tmp_path / "new" / "c.yaml", "num_processes: 2\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "c.yaml").stat().st_mode) == 0o644


def test_who_may_read_a_file_stays_as_it_was(accel: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(OF_ACCELERATE)
    path.chmod(0o620)
    assert accel("config", "update", "--config_file", "c.yaml").returncode == 0
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, tmp_path / "c.yaml.bak")] == [0o600, 0o600]


def test_a_path_that_cannot_be_written_is_named(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = accel("config", "default", "--cpu", "--config_file", "file/c.yaml")
    assert done.returncode == 2
    assert "config file file/c.yaml could not be written" in done.stderr


WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=12
).filter(lambda word: word.strip() == word and not word.startswith(("-", "/")))
NAME = st.from_regex(r"[a-z0-9:]{1,4}", fullmatch=True)


def values_of(option: LaunchOption) -> st.SearchStrategy[Value]:
    kinds: dict[object, st.SearchStrategy[Value]] = {
        COUNT: st.integers(1, 10**6),
        NUMBER: st.integers(0, 10**6),
        INTERVAL: st.integers(1, 10**6).map(str) | st.integers(1, 10**6).map("{}s".format),
        PORT: st.integers(0, 65535),
        DEVICES: st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True).map(
            lambda ids: ",".join(map(str, ids))
        ),
        PAIRS: st.dictionaries(NAME, NAME, min_size=1, max_size=3),
    }
    if option.name == "parallelism_config":
        return st.dictionaries(st.sampled_from(["tp_size", "dp_shard_size"]), st.integers(2, 99).map(str), min_size=1)
    if option.name == "fsdp_config":
        return st.dictionaries(st.sampled_from(["auto_wrap_policy", "min_num_params"]), NAME, min_size=1)
    if option.name == "deepspeed_config":
        return st.dictionaries(st.sampled_from(["deepspeed_config_file", "offload_param_device"]), NAME, min_size=1)
    if option.name == "dynamo_config":
        backend, mode = st.sampled_from(["eager", "inductor"]), st.sampled_from(["default", "max-autotune"])
        return st.fixed_dictionaries({"backend": backend}, optional={"mode": mode})
    if option.name == "submit":
        return st.sampled_from(BROUGHT)
    if isinstance(option.type, click.Choice):
        return st.sampled_from(option.type.choices)
    return st.booleans() if option.type is SWITCH else kinds.get(option.type, WORDS)


ALL = [option for option in OPTIONS if option.name not in ("fp16", "config_file", "module", "no_python")]


@pytest.mark.parametrize("option", ALL, ids=lambda option: option.name)
@settings(max_examples=25)  # of each of more than thirty options
@given(data=st.data())
def test_show_names_the_winner_and_its_origin_for_every_option(option: LaunchOption, data: st.DataObject) -> None:
    """T15."""
    flag, variable, file = (data.draw(st.none() | values_of(option)) for _ in range(3))
    tokens, environ = [], {}
    with tempfile.TemporaryDirectory() as folder:
        environ["ACCEL_HOME"] = folder
        path = config_folder(environ) / "default_config.yaml"
        path.write_text(file_text({str(option.name): file} if file is not None else {}, path))
        if flag is not None and option.type is SWITCH:
            tokens = option.words(flag or not option.off)
            flag = flag if option.off else True
        elif flag is not None:
            tokens = [f"{option.opts[-1]}={as_text(flag)}"]
        if variable is not None and option.envvar:
            environ[str(option.envvar)] = as_text(variable)
        found = resolve_options([*tokens, "s.py"], environ)
        lines = list(setting_lines(found, origins=True))
    assert found.problems == ()
    sources = [
        (flag, "flag", True),
        (variable, f"environment {option.envvar}", option.envvar),
        (file, f"config file {path}", option.key),
    ]
    default = vars_of_default(option)
    said = f"default: {option.preset}" if default is None and option.preset else "default"
    value, origin = next(((v, words) for v, words, can in sources if can and v is not None), (default, said))
    start = f"{option.key}: " if option.key else f"# {option.name}: "
    shown = [line.removeprefix(start).rsplit("  # ", 1) for line in lines if line.startswith(start)]
    if not option.key and origin == said:
        assert shown == []
        return
    assert [(yaml.safe_load(text), words) for text, words in shown] == [(value, origin)]
    others = [line for line in lines if not line.startswith((start, "# config_file: "))]
    assert all("  # default" in line for line in others)


def vars_of_default(option: LaunchOption) -> Value | None:
    found: Value | None = getattr(LaunchSettings(), str(option.name))
    return found


def test_show_has_one_line_for_each_option_of_the_file(accel: Run) -> None:
    """T15."""
    lines = accel("config", "show", "--origin").stdout.splitlines()
    keys = [option.key for option in OPTIONS if option.key is not None]
    assert [line.split(":")[0] for line in lines if not line.startswith("#")] == keys
    assert all("  # default" in line for line in lines)
    assert "num_processes: null  # default: one for each accelerator; one on each machine without accelerators" in lines
    said = {key: value for key, value in yaml.safe_load("\n".join(lines)).items() if value is not None}
    assert said == {
        "use_cpu": False,
        "as_accelerate": False,
        "use_fsdp": False,
        "use_deepspeed": False,
        "enable_cpu_affinity": False,
        "rdzv_backend": "static",
        "join_timeout": 300,
        "tee": "3",
        "max_restarts": 0,
    }
