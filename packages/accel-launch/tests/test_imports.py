"""What importing costs."""

import pkgutil
import subprocess
import sys
from collections.abc import Mapping

import accel_launch
import pytest


def run(code: str, environ: Mapping[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    return done.stdout


def test_import_of_accel_launch_leaves_torch_out(silent_environ: Mapping[str, str]) -> None:
    names = [module.name for module in pkgutil.walk_packages(accel_launch.__path__, "accel_launch.")]
    names = [name for name in names if not name.endswith("__main__")]
    assert "accel_launch.cli.commands.env" in names
    code = f"import sys, importlib\nfor name in {names}: importlib.import_module(name)\nprint('torch' in sys.modules)"
    assert run(code, silent_environ) == "False\n"


@pytest.mark.parametrize("arguments", [["--help"], ["launch", "--help"], ["test", "--help"]])
def test_help_imports_neither_torch_nor_yaml(silent_environ: Mapping[str, str], arguments: list[str]) -> None:
    code = (
        f"import sys; from accel_launch.cli import main; main({arguments})\n"
        "print([name for name in ('torch', 'yaml', 'numpy', 'psutil', 'questionary') if name in sys.modules])"
    )
    assert run(code, silent_environ).endswith("\n[]\n")
