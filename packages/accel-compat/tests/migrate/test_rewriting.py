"""What is rewritten in programs and scripts, what is left to a person, and what a report says."""

import pytest
from accel_compat.migrate.python_code import rewrite_python
from accel_compat.migrate.report import Kind
from accel_compat.migrate.shell_commands import rewrite_commands


def words(text: str, kind: Kind) -> list[str]:
    return [note.words for note in rewrite_python(text).notes if note.kind is kind]


@pytest.mark.parametrize(
    ("argument", "place"),
    [
        ("torch_tp_plugin", "parallelism_config=..."),
        ("logging_dir", "project_dir=..."),
        ("even_batches", "dataloader_config=DataLoaderConfiguration(even_batches=...)"),
    ],
)
def test_an_argument_that_accel_lacks_needs_a_hand(argument: str, place: str) -> None:
    """S182."""
    text = f"from accelerate import Accelerator\na = Accelerator(cpu=True, {argument}=x)\n"
    assert rewrite_python(text).text == text.replace("from accelerate", "from accel")
    assert words(text, Kind.BY_HAND) == [f"Accelerator({argument}=...) is {place} in accel"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import accelerate . utils  as  u\n", "import accel.utils  as  u\n"),
        ("from accelerate \\\n . utils import (set_seed)\n", "from accel.utils import (set_seed)\n"),
        ("é = 'ü'; import os, accelerate # é\n", "é = 'ü'; import os, accel as accelerate # é\n"),
        ("x = '''\r\x0c'''; from\taccelerate import*\r", "x = '''\r\x0c'''; from\taccel import*\r"),
        ("from accelerate.utéls import x\n", "from accel.utéls import x\n"),
        ("from os import accelerate, path\n", "from os import accelerate, path\n"),
    ],
)
def test_all_but_the_module_of_an_import_stays(before: str, after: str) -> None:
    """S182: whatever stands beside it on its line."""
    assert rewrite_python(before).text == after


def test_what_works_differently_is_told_once_with_its_page() -> None:
    """S182: at the place where the program first asks for it."""
    window = "with a.accumulate(m): pass\n"
    text = f"from accelerate import Accelerator\na = Accelerator()\n{window}{window}a.load_state('c')\n"
    told = sorted(note for note in rewrite_python(text).notes if note.kind is Kind.DIFFERENT)
    assert [note.line for note in told] == [3, 5]
    assert told[0].words.endswith("(docs/guides/accumulation.md)")
    assert "remove what skips batches" in told[1].words


def test_a_program_that_does_not_import_accelerate_stays() -> None:
    text = "import torch\naccelerate = 1\nmodel.prepare(accelerate)\n"
    assert rewrite_python(text).text == text
    assert rewrite_python(text).notes == ()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "accelerate launch --bf16 t.py",
            "accel launch --mixed_precision bf16 t.py",
            "",
        ),
        ("accelerate launch --num-processes 2 t.py", "accel launch --num-processes 2 t.py", ""),
        ("accelerate launch --dynamo_mode=default t.py", "accel launch --dynamo_mode=default t.py", ""),
        (
            "accelerate launch --rdzv_id=none t.py",
            "accel launch t.py",
            "",
        ),
        ("accelerate launch --downcast_bf16 t.py", "accel launch --downcast_bf16 t.py", "not supported"),
        ("accelerate launch --gpus 2 t.py", "accel launch --gpus 2 t.py", "here it is --gpu_ids, numbers"),
        ("accelerate launch --nothing t.py", "accel launch --nothing t.py", "--nothing is not an option of accel"),
        ("accelerate launch $FLAGS --bf16 t.py", "accel launch $FLAGS --bf16 t.py", ""),
        ("accelerate merge-weights a b --unsafe_serialization", "accel merge-weights a b --unsafe_serialization", ""),
        ("python3 -m accelerate.commands.launch t.py", "python3 -m accel launch t.py", ""),
        (
            "srun bash -c 'accelerate launch --quiet t.py'",
            "srun bash -c 'accel launch t.py'",
            "",
        ),
        ("echo ${ACCELERATE_USE_CPU}", "echo ${ACCEL_USE_CPU}", ""),
        ("export ACCELERATE_NOTHING=1", "export ACCELERATE_NOTHING=1", "sets nothing in accel"),
        ("pip install -U accelerate", "pip install -U accelerate", "installs accelerate"),
        ("conda install -c a accelerate", "conda install -c a accelerate", "installs accelerate"),
        ("poetry add accelerate", "poetry add accelerate", "installs accelerate"),
        ("$(which accelerate) launch t.py", "$(which accelerate) launch t.py", "asks where Accelerate is"),
        ("'accelerate' launch t.py", "'accelerate' launch t.py", "a quoted word is Accelerate"),
        (
            "python -m accelerate.commands.accelerate_cli env",
            "python -m accelerate.commands.accelerate_cli env",
            "python -m accel has",
        ),
    ],
)
def test_commands_have_the_options_of_accel(before: str, after: str, words: str) -> None:
    """S182: an option that asks for nothing here is left out; none is dropped that asks for something."""
    new = rewrite_commands(f"{before}\n")
    assert new.text == f"{after}\n"
    assert [words in note.words for note in new.notes] == [True] * bool(words)


@pytest.mark.parametrize(
    "text", ["# accelerate launch t.py", "echo my-accelerate launch", "/opt/accelerate launch t.py"]
)
def test_what_is_no_command_stays(text: str) -> None:
    assert rewrite_commands(text).text == text


def test_notes_have_the_lines_of_options() -> None:
    text = "cd x\naccelerate launch \\\n  --multi_gpu \\\n  --tpu \\\n  --use_cpu t.py\n"
    assert [(note.line, note.words.split()[0]) for note in rewrite_commands(text).notes] == [(4, "--tpu")]
