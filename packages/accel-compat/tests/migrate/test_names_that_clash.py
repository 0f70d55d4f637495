"""Programs in which names of Accelerate, of accel and of the program meet: they do the same after a migration."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from accel_compat.migrate.python_code import rewrite_python
from accel_compat.migrate.report import Kind
from accel_testing import stretched

#: modules that stand for Accelerate and for accel: each gives what it was asked for
STUB = """
class Accelerator:
    def __init__(self, **given): print("Accelerator", sorted(given))
    def print(self, *words): print("method", *words)
__version__ = "1"
"""
UTILS = "def set_seed(x): print('seed', x)\ndef gather(x): return ('gathered', x)\n"
RUNS = {
    "a function of that name out of another package": (
        "from speed import accelerate\nfrom accelerate import Accelerator\nprint(accelerate(2))\nAccelerator()\n"
    ),
    "a star of another package": (
        "from speed import *\nimport accelerate.utils\naccelerate.utils.set_seed(1)\nprint(accel)\n"
    ),
    "an argument that is called accel": (
        "from accelerate import Accelerator\n"
        "def train(accel):\n    import accelerate\n    accelerate.utils.set_seed(1)\n    accel.print('x')\n"
        "import accelerate.utils\ntrain(Accelerator())\n"
    ),
    "a module imported again": (
        "from accelerate import Accelerator\naccel = Accelerator()\nimport accelerate.utils\n"
        "accelerate.utils.set_seed(2)\naccel.print('x')\n"
    ),
    "an alias": "import accelerate as acc, accelerate.utils\nacc.utils.set_seed(1)\nacc.utils.operations.gather(1)\n",
    "a part as a value": "import accelerate.utils\nops = accelerate.utils.operations\nprint(ops.gather(1))\n",
    "a part of a member": "from accelerate import utils\nprint(utils.operations.gather(2))\n",
    "a part of an alias": "import accelerate.utils as u\nprint((u.operations\n).gather(3))\n",
    "an annotation in a text": (
        "import accelerate, typing\n"
        "def f(a: 'typing.Optional[accelerate.Accelerator]'): ...\n"
        "print(typing.get_type_hints(f)['a'] is not None, eval('1 and accelerate.Accelerator') is not None)\n"
    ),
}


def write_stubs(folder: Path) -> None:
    for name in ("accelerate", "accel"):
        (folder / name / "utils").mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"{STUB}from {name} import utils\n")
        (folder / name / "utils" / "__init__.py").write_text(f"{UTILS}from {name}.utils import operations\n")
        (folder / name / "utils" / "operations.py").write_text(f"from {name}.utils import gather\n")
    (folder / "speed.py").write_text("def accelerate(x): return 2 * x\naccel = 'the accel of speed'\n")


def printed(folder: Path, program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=stretched(60), check=False, env={}
    )
    assert done.returncode == 0, f"{program}\n{done.stderr}"
    return done.stdout


def hands(text: str) -> str:
    return "\n".join(note.words for note in rewrite_python(text).notes if note.kind is Kind.BY_HAND)


@pytest.mark.parametrize("name", RUNS)
def test_a_program_prints_the_same_before_and_after(name: str, tmp_path: Path) -> None:
    """S182."""
    write_stubs(tmp_path)
    after = rewrite_python(RUNS[name]).text
    assert "import accel" in after or "from accel " in after
    assert rewrite_python(after).text == after
    assert printed(tmp_path, after) == printed(tmp_path, RUNS[name])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import accelerate as acc\nacc.utils.nothing_like(1)\n", "nothing_like"),
        ("import accelerate as acc\nprint(acc.__version__)\n", "the version is that of accel"),
        ("from accelerate import __version__\n", "the version is that of accel"),
        ("from unittest import mock\nmock.patch('train.accelerate.X')\n", "the text 'train.accelerate.X' names"),
        (
            "from functools import partial\nfrom accelerate import Accelerator as A\npartial(A, even_batches=True)\n",
            "Accelerator(even_batches=...) is dataloader_config=DataLoaderConfiguration(even_batches=...) in accel",
        ),
        (
            "from accelerate import Accelerator\nclass A(Accelerator):\n"
            "    def __init__(self):\n        super().__init__(logging_dir='x')\n",
            "Accelerator(logging_dir=...) is project_dir=... in accel",
        ),
    ],
)
def test_what_cannot_be_rewritten_is_said(text: str, words: str) -> None:
    assert words in hands(text)
    ast.parse(rewrite_python(text).text)
