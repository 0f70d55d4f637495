"""Files as they are in the wild: a migration breaks none of them, and its second run changes nothing."""

import ast
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from accel_compat.migrate.replacement import replace_files
from accel_compat.migrate.report import CannotRewrite
from accel_compat.migrate.source_file import migrate


@dataclass(frozen=True)
class Hostile:
    """A file; what its new text holds and lacks, and words of a note. A file that is refused has `refused` words."""

    name: str
    content: str | bytes
    holds: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    note: str = ""
    refused: str = ""
    file: str = "train.py"

    @property
    def bytes(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.encode()


def cells(*sources: str | list[str]) -> str:
    code: list[object] = [{"cell_type": "code", "source": source, "outputs": [], "metadata": {}} for source in sources]
    return json.dumps({"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


SAGEMAKER = """compute_environment: AMAZON_SAGEMAKER
distributed_type: DATA_PARALLEL
ec2_instance_type: ml.p3.16xlarge
iam_role_name: role
num_machines: 2
image_uri: null
"""
FILES = [
    Hostile("a star", "from accelerate import *\na = Accelerator()\n", ("from accel import *",), note="a star brings"),
    Hostile("an alias", "import accelerate as acc\nacc.Accelerator()\n", ("import accel as acc\nacc.Acc",)),
    Hostile(
        "a plain import",
        "import accelerate\naccelerate.Accelerator()\n",
        ("import accel as accelerate\naccelerate.Acc",),
    ),
    Hostile(
        "a variable of that name",
        "def run(accelerate=False):\n    accelerate = not accelerate\n    return accelerate\n",
        ("def run(accelerate=False)", "accelerate = not"),
    ),
    Hostile(
        "a variable and the module",
        "import accelerate\ndef run(accelerate):\n    return accelerate\nrun(accelerate.Accelerator())\n",
        ("import accel as accelerate\n", "def run(accelerate)", "run(accelerate.Accelerator())"),
    ),
    Hostile(
        "a try",
        "try:\n    import accelerate\nexcept ImportError:\n    accelerate = None\n",
        ("    import accel as accelerate\nexcept ImportError:\n    accelerate = None",),
    ),
    Hostile(
        "accel is taken",
        "import accelerate\naccel = accelerate.Accelerator()\n",
        ("import accel as accelerate\naccel =",),
    ),
    Hostile(
        "an attribute and an argument of that name",
        "import accelerate\nself.accelerate = f(accelerate=accelerate.Accelerator())\n",
        ("import accel as accelerate\nself.accelerate = f(accelerate=accelerate.Acc",),
    ),
    Hostile(
        "a part of utils",
        "import accelerate.utils.dataclasses\nx = accelerate.utils.dataclasses.DistributedType.NO\n",
        ("import accel as accelerate\nx = accelerate.utils.dataclasses.DistributedType.NO",),
    ),
    Hostile(
        "a module that is not imported by itself",
        "import accelerate\naccelerate.utils.set_seed(1)\n",
        ("import accel as accelerate\naccelerate.utils.set_seed(1)",),
    ),
    Hostile(
        "brackets, comments and a comma at the end",
        "from accelerate.utils import (  # all\n    set_seed,  # a seed\n    gather as g,\n)\n",
        ("from accel.utils import (  # all\n    set_seed,  # a seed\n    gather as g,\n)\n",),
    ),
    Hostile(
        "backslashes",
        "from accelerate \\\n    import Accelerator, \\\n    PartialState\n",
        ("from accel \\\n    import Accelerator, \\\n    PartialState\n",),
    ),
    Hostile(
        "several on a line",
        "import os, accelerate, sys; accelerate.Accelerator()\n",
        ("os, accel as accelerate, sys; accelerate.A",),
    ),
    Hostile(
        "a relative module", "from .accelerate import x\nfrom . import accelerate\n", ("from .accelerate import x",)
    ),
    Hostile(
        "a package whose name begins alike",
        "import accelerate_extras\nfrom accelerator import x\n",
        ("accelerate_extras",),
    ),
    Hostile(
        "in a function",
        "def f():\n\timport accelerate\n\treturn accelerate\n",
        ("\timport accel as accelerate\n\treturn accelerate\n",),
    ),
    Hostile(
        "Windows line ends",
        b"import accelerate\r\nprint(accelerate.Accelerator)\r\n",
        ("import accel as accelerate\r\nprint(accelerate.Accelerator)\r\n",),
    ),
    Hostile(
        "mixed line ends",
        b"import os\r\nimport accelerate\nx = 1\r\n",
        ("import os\r\nimport accel as accelerate\nx = 1\r\n",),
    ),
    Hostile("no end of the last line", "from accelerate import Accelerator", ("from accel import Accelerator",)),
    Hostile("a byte order mark", b"\xef\xbb\xbfimport accelerate\n", ("import accel as accelerate\n",)),
    Hostile(
        "latin-1",
        b"# -*- coding: latin-1 -*-\nimport accelerate\nx = '\xe9'\n",
        ("import accel as accelerate\nx = '\xe9'\n",),
    ),
    Hostile("an encoding that is not there", b"# coding: nothing\nimport accelerate\n", refused="not Python"),
    Hostile("bytes that are no text", b"import accelerate\nx = '\xff'\n", refused="it is not Python: 'utf-8'"),
    Hostile("a syntax error", "import accelerate\nprint 'no'\n", refused="line 2: it is not Python"),
    Hostile("a null byte", b"import accelerate\x00\n", refused="it is not Python"),
    Hostile("empty", "", ("",)),
    Hostile("brackets without end", "import accelerate\nx = " + "(" * 500 + ")" * 500 + "\n", refused="not Python"),
    Hostile(
        "a form feed and a docstring",
        '"""A."""\n\x0cimport accelerate\n',
        ('"""A."""\n\x0cimport accel as accelerate\n',),
    ),
    Hostile(
        "new words of Python",
        "import accelerate\nmatch accelerate.PartialState():\n    case x if (y := x):\n        print(f'{y!r:>{10}}')\n",
        ("import accel as accelerate\nmatch accelerate.PartialState():",),
    ),
    Hostile(
        "a match that takes the name",
        "import accelerate\nmatch f():\n    case accelerate:\n        pass\n",
        ("import accel as accelerate",),
    ),
    Hostile(
        "texts",
        "import importlib, os\n"
        "m = importlib.import_module('accelerate.utils')\nos.environ['ACCELERATE_USE_CPU'] = '1'\n",
        ("'accelerate.utils'", "'ACCELERATE_USE_CPU'"),
        note="the text 'accelerate.utils' names a module",
    ),
    Hostile(
        "an annotation in a text",
        "import accelerate\ndef f(a: 'accelerate.Accelerator'): ...\n",
        ("import accel as accelerate", "'accelerate.Accelerator'"),
    ),
    Hostile("a name that is not there", "from accelerate.utils import nothing_like_it\n", note="nothing_like_it"),
    Hostile(
        "a notebook",
        cells(["import accelerate\n", "accelerate.Accelerator()"], "print(accelerate.PartialState())", ["%cd x\n"]),
        ("import accel as accelerate", "print(accelerate.PartialState())", "%cd x"),
        file="train.ipynb",
    ),
    Hostile(
        "a notebook with commands and help",
        cells("!accelerate launch --use_cpu train.py\nif x:\n    !pip list", "Accelerator?", "%%bash\naccelerate env"),
        ("!accel launch --cpu train.py", "    !pip list", "Accelerator?", "%%bash\\naccel env"),
        file="commands.ipynb",
    ),
    Hostile("a notebook that is none", "[1, 2]", refused="not a notebook", file="train.ipynb"),
    Hostile("a notebook cut short", '{"cells": [', refused="not a notebook", file="train.ipynb"),
    Hostile("SageMaker", SAGEMAKER, (SAGEMAKER,), note="submits the job to SageMaker", file="sagemaker.yaml"),
    Hostile(
        "a config with Windows line ends",
        b"# mine\r\ndistributed_type: MULTI_CPU\r\nnum_processes: 2\r\nsame_network: true\r\n",
        ("# mine\r\nnum_processes: 2\r\nuse_cpu: true\r\n",),
        ("same_network", "distributed_type"),
        file="config.yaml",
    ),
    Hostile(
        "a config for TPUs",
        "compute_environment: LOCAL_MACHINE\ndistributed_type: TPU\n",
        ("distributed_type: TPU",),
        note="'TPU' is not supported",
        file="tpu.yml",
    ),
    Hostile(
        "a workflow",
        "jobs:\n  test:\n    steps:\n      - run: |\n"
        "          accelerate launch --multi_gpu \\\n            train.py\n",
        ("          accel launch \\\n            train.py\n",),
        file="workflow.yml",
    ),
    Hostile("YAML with tabs", "a:\n\t- accelerate\n", ("\t- accelerate",), file="broken.yaml"),
    Hostile("JSON of another program", '{"accelerate": true}', ('{"accelerate": true}',), file="package.json"),
    Hostile(
        "a shell script with continuations",
        "#!/bin/bash\r\n"
        "accelerate launch \\\r\n  --multi_gpu \\\r\n  --num_processes 2 \\\r\n  train.py --multi_gpu\r\n",
        ("accel launch \\\r\n  --num_processes 2 \\\r\n  train.py --multi_gpu\r\n",),
        file="run.sh",
    ),
    Hostile(
        "a shell script in latin-1",
        b"#!/bin/sh\n# caf\xe9: accelerate launch\nACCELERATE_USE_CPU=1 accelerate-launch -m x\n",
        ("accelerate launch\nACCEL_USE_CPU=1 accel launch -m x",),
        file="job",
    ),
    Hostile("a spreadsheet", "accelerate,1\n", refused="its kind is not among", file="table.csv"),
]


def test_there_are_thirty() -> None:
    assert len({hostile.name for hostile in FILES}) == len(FILES) >= 30


@pytest.mark.parametrize("hostile", FILES, ids=lambda hostile: hostile.name)
def test_no_file_is_broken_and_a_second_run_changes_nothing(hostile: Hostile, tmp_path: Path) -> None:
    """S182: what is refused stays as it is."""
    path = tmp_path / hostile.file
    path.write_bytes(hostile.bytes)
    if hostile.refused:
        with pytest.raises(CannotRewrite, match=hostile.refused):
            migrate(path)
        return
    migration = migrate(path)
    assert path.read_bytes() == hostile.bytes, "migrate itself writes nothing"
    for text in hostile.holds:
        assert text in migration.after.text
    for text in hostile.lacks:
        assert text not in migration.after.text
    assert hostile.note in "\n".join(note.words for note in migration.after.notes)
    assert not replace_files([migration])
    assert [one.name for one in tmp_path.iterdir()] == [hostile.file], "nothing half-written is left"
    new = path.read_bytes()
    assert new.startswith(b"\xef\xbb\xbf") == hostile.bytes.startswith(b"\xef\xbb\xbf")
    if path.suffix == ".py":
        ast.parse(new)
    if path.suffix in (".ipynb", ".json"):
        json.loads(new)
    if path.suffix in (".yaml", ".yml") and "tabs" not in hostile.name:
        yaml.safe_load(new.decode())
    if path.suffix == ".sh":
        assert subprocess.run(["bash", "-n"], input=new.replace(b"\r", b""), check=False).returncode == 0
    assert not migrate(path).changes
