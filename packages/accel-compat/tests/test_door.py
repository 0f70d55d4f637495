"""What a program sees that imports accelerate."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from accel_testing import stretched
from silent_environ import silent

Python = Callable[..., "subprocess.CompletedProcess[str]"]
PTH = Path(__file__).parents[1] / "src" / "accel_compat.pth"
OPEN = "import accel_compat; accel_compat.install()\n"
#: reads the file for the start of Python as Python does for installed packages
START = "import site; site.addsitedir('installed')\nimport accelerate; print(accelerate.__version__)"


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    """A package that is called accelerate, installed beside accel."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").write_text("__version__ = 'its own'\n")
    return tmp_path


def printed(done: "subprocess.CompletedProcess[str]") -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_imports_of_accelerate_are_answered_by_accel(forked: Python) -> None:
    """S180: a module, its parts, what it is asked for, and the things in it, which are accel's own."""
    program = """
import accelerate, accelerate.utils.operations, accelerate.utils.bnb
import accel, accel.utils, accel.data_loader
from accelerate import Accelerator
from accelerate.data_loader import skip_first_batches
from accelerate.utils import set_seed
from accelerate.utils.dataclasses import DistributedType
assert Accelerator is accel.Accelerator and DistributedType is accel.DistributedType
assert skip_first_batches is accel.data_loader.skip_first_batches
assert accelerate.utils.operations.set_seed is set_seed is accel.utils.set_seed
assert accelerate.utils.bnb.set_seed is set_seed
assert "Accelerator" in dir(accelerate) and accelerate.__all__ == accel.__all__
print(accelerate.__version__, accelerate.utils.__name__)
"""
    assert printed(forked(OPEN + program)) == ["1.15.0 accelerate.utils"]


def test_a_submodule_is_there_without_an_import_of_its_own(forked: Python) -> None:
    assert printed(forked(f"{OPEN}import accelerate; print(accelerate.utils.__name__)")) == ["accelerate.utils"]


def test_a_star_brings_names(forked: Python) -> None:
    program = f"{OPEN}from accelerate import *\nfrom accelerate.utils import *\n"
    assert printed(forked(f"{program}print(Accelerator.__name__, callable(set_seed))")) == ["Accelerator True"]


def test_what_a_program_replaces_in_a_module_is_replaced_in_accel(forked: Python) -> None:
    """As tests of libraries do with mock.patch."""
    program = """
import accelerate.utils, accel.utils
from unittest import mock
with mock.patch("accelerate.utils.set_seed", 7):
    print(accel.utils.set_seed)
print(callable(accel.utils.set_seed))
"""
    assert printed(forked(OPEN + program)) == ["7", "True"]


def test_the_metadata_is_that_of_a_release(python: Python) -> None:
    """S180: what libraries ask before they use accelerate."""
    program = """
from importlib.metadata import PackageNotFoundError, distribution, metadata, packages_distributions, version
print(version("accelerate"), packages_distributions()["accelerate"][0], distribution("accelerate").requires)
try:
    version("accelerate-nothing")
except PackageNotFoundError:
    print(version("pytest") != "1.15.0")
print("huggingface" in metadata("accelerate")["Home-page"])
"""
    assert printed(python(OPEN + program)) == ["1.15.0 accelerate None", "True", "True"]


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_transformers_finds_accelerate(forked: Python) -> None:
    program = "from transformers.utils import is_accelerate_available as a; print(a(), a('1.15.0'), a('1.16.0'))"
    assert printed(forked(OPEN + program)) == ["True True False"]


def test_nothing_changes_until_it_is_asked_for(python: Python, peer: Path) -> None:
    """S180: both live in one environment; what is imported is decided for each process."""
    program = "import accel, accel_compat, accelerate; print(accelerate.__version__)"
    assert printed(python(program)) == ["its own"]
    assert printed(python(OPEN + program)) == ["1.15.0"]


def test_it_comes_too_late_after_accelerate_itself(python: Python, peer: Path) -> None:
    """S180: modules hold names of the other package by then."""
    done = python(f"import accelerate\n{OPEN}")
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: accel_compat.install(): accelerate is imported already, from {peer}")
    assert said.endswith("accel launch --as_accelerate does so")


def test_a_second_call_does_nothing(forked: Python) -> None:
    program = (
        "import sys, accelerate; accel_compat.install(); print(sum('Alias' in repr(one) for one in sys.meta_path))"
    )
    assert printed(forked(OPEN + program)) == ["1"]


def test_a_module_that_accel_lacks_is_named(forked: Python) -> None:
    done = forked(f"{OPEN}import accelerate.nothing.here")
    assert "there is no accel.nothing; docs/guides/programs-for-accelerate.md says" in done.stderr


def test_a_name_that_accel_lacks_has_words(forked: Python) -> None:
    done = forked(f"{OPEN}import accelerate.utils; accelerate.utils.prepare_nxd")
    assert "accel.utils" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["prepare_pippy", "nothing_like_that"])
def test_a_name_that_accel_lacks_is_no_module(name: str, forked: Python) -> None:
    """S180: the import fails, and gives nothing that takes its place."""
    done = forked(f"{OPEN}from accelerate.utils import {name}")
    assert f"ImportError: cannot import name '{name}'" in done.stderr
    assert f"there is no accel.utils.{name}" in done.stderr


def test_a_name_that_programs_only_import_is_refused_when_it_is_used(forked: Python) -> None:
    program = "from accelerate.utils import FP8RecipeKwargs\nprint(isinstance(1, FP8RecipeKwargs))\nFP8RecipeKwargs()"
    elsewhere = "import accelerate.hooks\nprint(hasattr(accelerate.hooks, 'FP8RecipeKwargs'))\n"
    done = forked(f"{OPEN}{elsewhere}{program}")
    assert done.stdout == "False\nFalse\n"
    assert 'CannotRun: FP8RecipeKwargs: mixed_precision="fp8" converts linear layers' in done.stderr


def test_it_does_not_import_torch(python: Python) -> None:
    assert printed(python(f"{OPEN}import accelerate, sys; print('torch' in sys.modules)")) == ["False"]


@pytest.mark.parametrize(("word", "version"), [("1", "1.15.0"), ("true", "1.15.0"), ("0", "its own"), ("", "its own")])
def test_the_variable_opens_the_door_at_the_start_of_python(
    python: Python, peer: Path, word: str, version: str
) -> None:
    """S180: by the file that the package installs."""
    (peer / "installed").mkdir()
    shutil.copy(PTH, peer / "installed")
    assert printed(python(START, ACCEL_AS_ACCELERATE=word)) == [version]


def test_processes_that_a_program_starts_have_the_door_too(python: Python, peer: Path) -> None:
    (peer / "installed").mkdir()
    shutil.copy(PTH, peer / "installed")
    child = f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {START!r}], text=True))"
    assert printed(python(OPEN + child))[0] == "1.15.0"


def test_a_variable_that_is_no_word_ends_python(python: Python, peer: Path) -> None:
    """S180: without a word of the real Accelerate."""
    (peer / "installed").mkdir()
    shutil.copy(PTH, peer / "installed")
    done = python(START, ACCEL_AS_ACCELERATE="maybe")
    assert (done.returncode, done.stdout) == (1, "")
    assert "accel-compat: ACCEL_AS_ACCELERATE='maybe': expected one of 1, true" in done.stderr.splitlines()[-1]


def test_a_part_of_accelerate_is_too_late_too(python: Python) -> None:
    done = python(f"import sys, types\nsys.modules['accelerate.utils'] = types.ModuleType('u')\n{OPEN}")
    assert "accelerate is imported already" in done.stderr.splitlines()[-1]


def test_it_answers_questions_as_finders_do(forked: Python) -> None:
    """None for what is not there, packages for packages only, and no metadata in folders that are not searched."""
    program = """
from importlib.metadata import distributions
from importlib.util import find_spec
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    print(find_spec("accelerate.nothing"), "there is no accel.nothing" in str(told[0].message))
print(find_spec("accelerate.data_loader").submodule_search_locations, find_spec("accelerate.utils").origin)
print([one.name for one in distributions(path=["."])])
import accelerate.data_loader, accelerate.utils
print(hasattr(accelerate.data_loader, "__path__"), accelerate.utils.__path__)
"""
    assert printed(forked(OPEN + program)) == ["None True", "None None", "[]", "False []"]


def test_a_submodule_is_looked_for_once(forked: Python) -> None:
    program = """
import accelerate, importlib.util
accelerate.Accelerator, accelerate.utils
importlib.util.find_spec = None
print(accelerate.Accelerator.__name__, accelerate.utils.__name__)
"""
    assert printed(forked(OPEN + program)) == ["Accelerator accelerate.utils"]


@pytest.mark.parametrize("module", ["launch", "accelerate_cli", "config", "env", "test"])
def test_commands_of_accelerate_run_as_modules(python: Python, module: str) -> None:
    run = f"runpy.run_module('accelerate.commands.{module}', alter_sys=True)"
    done = python(f"{OPEN}import runpy, sys; sys.argv[1:] = ['--help']; {run}")
    assert done.returncode == 0, done.stderr
    assert f"Usage: accel {'' if module == 'accelerate_cli' else module}".rstrip() in done.stdout


def launched(folder: Path, *options: str, **variables: str) -> list[str]:
    """What `accel launch` with some options prints for train.py."""
    command = [sys.executable, "-m", "accel_launch", "launch", "--cpu", *options, "train.py"]
    return printed(
        subprocess.run(
            command,
            cwd=folder,
            env={**silent(folder), **variables},
            capture_output=True,
            text=True,
            timeout=stretched(60),
            check=False,
        )
    )


def test_the_launcher_opens_the_door_for_its_processes(tmp_path: Path, peer: Path) -> None:
    """S181: for those of a job of several."""
    program = (
        "from accelerate import PartialState\nif PartialState().is_main_process: print(PartialState().num_processes)"
    )
    (tmp_path / "train.py").write_text(program)
    assert launched(tmp_path, "--as_accelerate", "-n", "2") == ["2"]


def test_a_flag_a_variable_or_a_file_opens_the_door(tmp_path: Path, peer: Path) -> None:
    """S181: and without them accelerate is what it was, as with a flag against the file."""
    (tmp_path / "train.py").write_text("import accelerate; print(accelerate.__version__)\n")
    (tmp_path / "file.yaml").write_text("as_accelerate: true\n")
    assert launched(tmp_path, "--as_accelerate") == ["1.15.0"]
    assert launched(tmp_path, ACCEL_AS_ACCELERATE="1") == ["1.15.0"]
    assert launched(tmp_path, "--config_file", "file.yaml") == ["1.15.0"]
    assert launched(tmp_path) == ["its own"]
    assert launched(tmp_path, "--config_file", "file.yaml", "--no_as_accelerate") == ["its own"]


def test_helpers_of_tests_are_those_of_an_installed_accelerate(python: Python, peer: Path) -> None:
    """They use names of accel, and accel's own are there for who installed accel alone."""
    scripts = peer / "accelerate" / "test_utils" / "scripts"
    scripts.mkdir(parents=True)
    (scripts.parent / "__init__.py").write_text("from ..state import PartialState\nfrom .scripts import test_ops\n")
    (scripts / "__init__.py").touch()
    (scripts / "test_ops.py").write_text("whose = 'its own'\n")
    program = """
import accel.test_utils, accelerate.test_utils as found
print(found.test_ops.whose, found.PartialState is accel.PartialState, hasattr(accel.test_utils, "RegressionModel"))
"""
    assert printed(python(OPEN + program)) == ["its own True True"]
    (scripts.parent / "__init__.py").unlink()
    shutil.rmtree(scripts.parent)
    found = printed(
        python(f"{OPEN}from accelerate.test_utils.testing import require_cpu; print(require_cpu.__module__)")
    )
    assert found == ["unittest.case"]
