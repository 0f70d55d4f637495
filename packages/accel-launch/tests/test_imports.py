"""What importing costs."""

import pkgutil
import subprocess
import sys
import time
from collections.abc import Mapping

import accel_launch
import pytest


def run(code: str, environ: Mapping[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    return done.stdout


def test_import_of_accel_launch_leaves_torch_out(silent_environ: Mapping[str, str]) -> None:
    names = [module.name for module in pkgutil.walk_packages(accel_launch.__path__, "accel_launch.")]
    names = [name for name in names if not name.endswith("__main__")]
    assert "accel_launch.commands.env" in names
    code = f"import sys, importlib\nfor name in {names}: importlib.import_module(name)\nprint('torch' in sys.modules)"
    assert run(code, silent_environ) == "False\n"


@pytest.mark.parametrize("arguments", [["--help"], ["launch", "--help"], ["test", "--help"]])
def test_help_imports_neither_torch_nor_yaml(silent_environ: Mapping[str, str], arguments: list[str]) -> None:
    code = (
        f"import sys; from accel_launch.cli import main; main({arguments})\n"
        "print([name for name in ('torch', 'yaml', 'numpy', 'accel_state') if name in sys.modules])"
    )
    assert run(code, silent_environ).endswith("\n[]\n")


@pytest.mark.parametrize("arguments", [["--help"], ["launch", "--help"]])
def test_help_is_printed_in_less_than_100_ms(silent_environ: Mapping[str, str], arguments: list[str]) -> None:
    """T35; the best of five, since the machine does other things as well."""
    took_s = []
    for _ in range(5):
        begin_s = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "accel_launch", *arguments], env=silent_environ, check=True, capture_output=True
        )
        took_s.append(time.perf_counter() - begin_s)
    assert min(took_s) < 0.1
