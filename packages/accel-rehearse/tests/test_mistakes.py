"""`accel rehearse` names what is wrong with a program, with its line, and lets right programs pass."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_launch.cli.launch_command import resolve_options
from accel_launch.script_job import ScriptJob
from accel_rehearse import command
from accel_rehearse.hardware import Hardware
from accel_rehearse.mistakes import mistakes_of
from accel_rehearse.notes import _mistakes
from accel_rehearse.rehearsal import Rehearsal
from accel_rehearse.runner import _note_error
from accel_state.errors import CannotRun
from torch import nn

pytestmark = pytest.mark.timeout(300)
Rehearse = Callable[..., Any]
PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = (PROGRAMS / "classify.py").read_text()
LAST = "            total += loss.item()\n"

PREPARE = "    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)\n"
#: for each mistake: what is replaced, by what, what is said of which words of the program, and options
WRONG: dict[str, tuple[str, str, str, str, list[str]]] = {
    "schedule": ("EPOCHS * len(loader)", "len(loader)", "ends at step 32, and training has 96", "LambdaLR(", []),
    "long schedule": ("EPOCHS * len", "9 * EPOCHS * len", "ends at step 864, and training has 96", "LambdaLR(", []),
    "memory": ("", "", "and its device has 9.5 kB for tensors", PREPARE, ["--memory", "10kB"]),
    "main": (
        LAST,
        LAST + "            if accelerator.is_main_process:\n                accelerator.gather(loss)\n",
        "do different things: gather",
        "accelerator.gather(loss)",
        [],
    ),
    "end": (
        'accelerator.save_model(model, "out")',
        "if accelerator.is_main_process:\n        accelerator.gather(right[0])",
        "do different things: gather, and the end of the script",
        "accelerator.gather(right",
        [],
    ),
    "save": (
        LAST,
        LAST + "        if accelerator.is_main_process:\n            accelerator.save_state('out')\n",
        "do different things: save_state",
        "accelerator.save_state(",
        [],
    ),
    "gather": ("gather_for_metrics((", "gather((", "96 for 90 of the data", "accelerator.gather((", []),
    "unprepared": (
        "loader, test_loader = accelerator.prepare(loader, test_loader)",
        "test_loader = accelerator.prepare(test_loader)",
        "was not prepared",
        "in loader:",
        [],
    ),
    "unlike": (
        "nn.Linear(16, 64)",
        "nn.Linear(16, 64, bias=accelerator.is_main_process)",
        "do different things: broadcast of 96 bytes, and broadcast of 80 bytes",
        PREPARE,
        [],
    ),
    "unlike data": (
        "torch.randn(512, 16), torch.randint(0, 4, (512,))",
        "torch.randn(n := 512 + 32 * accelerator.process_index, 16), torch.zeros(n).long()",
        "do different things: training on 32 batches, and training on 34 batches",
        "accelerator.backward(",
        [],
    ),
    "strange": ("AdamW(model.", "AdamW(nn.Linear(2, 2).", "no optimizer has made a step with gradients", PREPARE, []),
    "shape": ("nn.Linear(64, 4)", "nn.Linear(65, 4)", "reduction dim", "model(inputs), labels", []),
    "no step": ("            optimizer.step()\n", "", "no optimizer has made a step with gradients", PREPARE, []),
    "batch": (
        "Accelerator()",
        "Accelerator(dataloader_config=__import__('accel').DataLoaderConfiguration(split_batches=True))",
        "8",
        "prepare(loader",
        ["-n", "3"],
    ),
    "no batch": (
        "batch_size=8, shuffle=True",
        "batch_size=300, drop_last=True",
        "no batch for this rank",
        "prepare(loader",
        [],
    ),
    "shards": (
        "DataLoader(train, batch_size=8, shuffle=True)",
        "DataLoader(Files(), batch_size=8)",
        "its 3 shards cannot be divided equally among 2 readers",
        "prepare(loader",
        ["--ranks", "0"],
    ),
    "checkpoint": (
        PREPARE,
        f"{PREPARE}    accelerator.register_for_checkpointing(Counter())\n    accelerator.save_state('out')\n",
        "KeyError: 'count'",
        'self.count = state["count"]',
        [],
    ),
    "own checkpoint": (
        LAST,
        f"{LAST}        torch.save(model.state_dict(), 'w')\n"
        "        model.module[0].load_state_dict(torch.load('w'))\n",
        "Missing key(s) in state_dict",
        "torch.load(",
        [],
    ),
}
MORE = """

class Files(torch.utils.data.IterableDataset):
    num_shards = 3

    def __init__(self, index=0, of=1):
        self.index, self.of = index, of

    def __len__(self):
        return 512

    def shard(self, num_shards, index):
        return Files(index, num_shards)

    def __iter__(self):
        for number in range(self.index, 512, self.of):
            yield torch.full((16,), float(number)), number % 4


class Counter:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        self.count = state["count"]

"""


@pytest.mark.parametrize("name", ["schedule", "main", "gather", "end"])
def test_a_mistake_is_named_with_its_line(name: str, tmp_path: Path, rehearse: Rehearse) -> None:
    _check(name, tmp_path, rehearse)


@pytest.mark.soak(only=True)
@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_is_named_with_its_line(name: str, tmp_path: Path, rehearse: Rehearse) -> None:
    _check(name, tmp_path, rehearse)


def _check(name: str, folder: Path, rehearse: Rehearse) -> None:
    old, new, what, words, options = WRONG[name]
    assert old in PROGRAM
    text = PROGRAM.replace(old, new, 1).replace("\n\n\ndef main", f"{MORE}\ndef main")
    script = folder / "wrong.py"
    script.write_text(text)
    found = rehearse(script, "-n", "2", *options)
    assert found.code == 1, found.words
    line = text[: text.index(words)].count("\n") + 1
    named = [one["line"] for one in found.report["mistakes"] if what in one["what"]]
    assert named == [f"{script}:{line}"], found.words
    assert all(one["remedy"] for one in found.report["mistakes"])


def test_a_right_program_passes_and_is_run_to_its_end(rehearse: Rehearse) -> None:
    found = rehearse(PROGRAMS / "classify.py", "-n", "2")
    assert found.code == 0, found.words
    assert "epoch 2:" in found.words
    assert not found.report["mistakes"]
    assert found.report["samples_per_step"] == 16
    assert found.report["steps_per_epoch"] == 32
    assert found.report["schedule_ends_at_step"] == 96


#: a warm-up and what follows, in schedules that torch begins in other ways than single ones
SEQUENCE = """torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        schedulers=[
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20),
            torch.optim.lr_scheduler.ChainedScheduler(
                [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20)]
            ),
        ],
        milestones=[20],
    )"""


def test_schedules_one_after_the_other_are_one_schedule(tmp_path: Path, rehearse: Rehearse) -> None:
    script = tmp_path / "sequence.py"
    single = "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))"
    assert single in PROGRAM
    script.write_text(PROGRAM.replace(single, SEQUENCE))
    found = rehearse(script, "-n", "2", "--ranks", "0")
    assert found.code == 0, found.words
    assert found.report["schedule_ends_at_step"] == found.report["training_steps"] == 96


def test_a_rank_that_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As one whose script calls `os._exit(0)`."""
    job = SimpleNamespace(run=lambda *_: (0, "the last words"))
    monkeypatch.setattr(command, "read_script_job", lambda *_: job)
    with pytest.raises(CannotRun, match="ended before it could say what it found"):
        command._rehearse(resolve_options(["train.py"], {}), {"ranks": [0]})
    assert "the last words" in capsys.readouterr().err


@pytest.mark.parametrize(
    "around",
    [
        {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"},
        {"WORLD_SIZE": "8"},
        {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "1"},
    ],
    ids=["a worker", "a size", "a job of two nodes"],
)
@pytest.mark.parametrize("ranks", [[63], [0, 63]])
def test_what_runs_around_a_rehearsal_is_not_its_job(
    around: dict[str, str], ranks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ScriptJob] = []

    def run(job: ScriptJob, *_: object) -> tuple[int, str]:
        started.append(job)
        return 0, "its last words"

    monkeypatch.setattr(ScriptJob, "run", run)
    with pytest.raises(CannotRun, match="ended before it could say what it found"):
        command._rehearse(resolve_options([__file__], around), {"ranks": ranks})
    (job,) = started
    assert job.count == len(ranks)
    assert job.options.environ["RANK"] == "0"  # of the ranks that run


@pytest.mark.parametrize("path", ["weights", Path("weights")])
def test_only_what_save_pretrained_has_not_written_is_refused(path: str | Path) -> None:
    rehearsal = Rehearsal(3, cpu=True)
    rehearsal.unwritten(path, safe_serialization=True)
    for name in ("weights/model.safetensors", "data.csv"):
        try:
            raise FileNotFoundError(2, "No such file or directory", name)
        except OSError as error:
            _note_error(error, rehearsal)
    assert ["weights/" in what for what, _, _ in rehearsal.refusals] == [True]
    assert ["data.csv" in what for what, _, _ in rehearsal.mistakes] == [True]


def test_a_rank_that_holds_no_rows_steps_with_gradients() -> None:
    """As the last of 64 ranks, of layers of 130 rows."""
    rehearsal = Rehearsal(3, cpu=True)
    weight = nn.Parameter(torch.empty(0, 16))
    optimizer = torch.optim.SGD([weight])
    rehearsal._before_step(optimizer, (), {})
    assert [what for what, _, _ in _mistakes(rehearsal)] == ["no optimizer has made a step with gradients"]
    weight.grad = torch.empty(0, 16)
    rehearsal._before_step(optimizer, (), {})
    assert not [*_mistakes(rehearsal)]


def test_a_script_that_is_refused_before_its_first_step_has_no_mistake() -> None:
    rehearsal = Rehearsal(3, cpu=True)
    rehearsal.refusals.append(("a model is to be compiled", "train.py:7", "leave it out"))
    assert not [*_mistakes(rehearsal)]


#: what cannot be rehearsed: lines after the loss, of which the last is named
REFUSED = {
    "a number": ["if loss.item() > 5:\n                break"],
    "a tensor": ["if loss > 5:\n                break"],
    "a number that was kept": ["large = loss.item() > 5", "if large:\n                break"],
    "a kernel": [
        "way = {'mutates_args': (), 'schema': '(Tensor x) -> Tensor'}",
        "double = torch.library.custom_op('mine::double', lambda x: x * 2, **way)",
        "double(loss.detach())",
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_rehearsed_is_refused_by_its_line(name: str, tmp_path: Path, rehearse: Rehearse) -> None:
    script = tmp_path / "steers.py"
    script.write_text(PROGRAM.replace(LAST, LAST + "".join(f"            {line}\n" for line in REFUSED[name])))
    found = rehearse(script, "-n", "2", "--ranks", "0")
    assert found.code == 2, found.words
    (refusal,) = found.report["refusals"]
    number = re.search(r"steers.py:(\d+)$", refusal["line"])
    assert number is not None
    assert script.read_text().splitlines()[int(number[1]) - 1].strip() == REFUSED[name][-1].partition("\n")[0]


def test_heads_that_do_not_divide_are_named(rehearse: Rehearse) -> None:
    pytest.importorskip("transformers")
    sizes = ["-n", "4", "--ranks", "0", "--parallelism_config", "tp_size=4"]
    found = rehearse(PROGRAMS / "train.py", *sizes, arguments=("--model", "llama"))
    assert found.code == 1, found.words
    (mistake,) = found.report["mistakes"]
    assert "num_key_value_heads=2 is not a multiple of 4" in mistake["what"]
    line = int(mistake["line"].rpartition(":")[2])
    assert "accelerator.prepare(" in (PROGRAMS / "train.py").read_text().splitlines()[line - 1]


def _notes(**changed: Any) -> dict[str, Any]:
    return {
        "rank": 0,
        "said": {
            "parameters_bytes": 10 * 10**9,
            "gradients_bytes": 10 * 10**9,
            "optimizer_bytes": 20 * 10**9,
            "peak_bytes": 110 * 10**9,
            "peak_at": {"phase": "backward", "module": "layers.3"},
            "peak_by_kind": {"activations": 70 * 10**9},
            "flops_by_precision": {"float32": 1},
        },
        "whole_bytes": 10 * 10**9,
        "recomputed_bytes": 60 * 10**9,
        "lines": {"prepare": "train.py:7"},
        "calls": [],
        "mistakes": [],
        **changed,
    }


def test_too_much_memory_is_told_with_what_would_help() -> None:
    ((what, line, remedy),) = mistakes_of([_notes()], 8, Hardware(memory=80 * 10**9))
    assert line == "train.py:7"
    assert what.startswith("rank 0 takes 110 GB in the backward of layers.3")
    helps = [re.sub(r" \(.*\)", "", one) for one in remedy.split("; ")]
    assert helps == [
        "sharding over all ranks saves up to 35 GB",
        "computing in 16 bits saves up to 35 GB",
        "recomputation saves up to 60 GB",
        "half the batch saves up to 35 GB",
    ]
    assert not mistakes_of([_notes()], 8, Hardware(memory=141 * 10**9))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_products_that_are_in_16_bits_already_are_no_way_out(precision: str) -> None:
    notes = _notes()
    notes["said"]["flops_by_precision"] = {"float32": 1, precision: 9}
    ((_, _, remedy),) = mistakes_of([notes], 8, Hardware(memory=80 * 10**9))
    assert "mixed_precision" not in remedy


def test_ranks_with_unlike_numbers_of_batches_are_told() -> None:
    unlike = [_notes(rank=rank, calls=[[f"training on {9 + rank} batches", "train.py:9"]]) for rank in (0, 1)]
    ((what, line, _),) = mistakes_of(unlike, 8, Hardware())
    assert what == "ranks 0 and 1 do different things: training on 9 batches, and training on 10 batches (train.py:9)"
    assert line == "train.py:9"
