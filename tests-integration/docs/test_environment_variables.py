"""docs/reference/environment-variables.md has each variable that the packages name, and no other."""

import ast
import re
from pathlib import Path

import pytest
from accel_launch.cli.options import OPTIONS
from repository import PACKAGES, ROOT

PAGE = ROOT / "docs" / "reference" / "environment-variables.md"
#: words in capitals, in modules that deal with the environment, that are no variables
NO_VARIABLES = {
    *("ACCELERATE_", "ACCEL_", "FSDP_", "PARALLELISM_CONFIG_", "TORCHELASTIC_"),  # how variables begin
    *("DYLD_", "KMP_", "LD_", "MKL_", "PYTHON", "TORCH_", "TORCH_NCCL_"),
    *("DEVICE", "DEVICES", "ENVIRONMENT"),  # names in modules that a registry loads
    *("BYTES", "RANKS", "RATE", "RATES", "SECONDS"),
    *("FILE", "HOST", "IDS", "MODULE", "PORT", "SCRIPT", "TEXT", "YAML", "JSON"),  # words of help texts
    *("AMAZON_SAGEMAKER", "DEEPSPEED", "FSDP", "LOCAL_MACHINE", "MULTI_CPU", "MULTI_GPU", "NO"),  # values of Accelerate
    *("FULL_SHARD", "FULL_STATE_DICT", "SHARDED_STATE_DICT", "SHARD_GRAD_OP"),
    *("FATAL", "HEAD", "SLURM"),
}


def variables_in(source: str) -> set[str]:
    """The names of variables in a module: whole texts in capitals, and names inside of texts."""
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    found = {name for text in texts for name in re.findall(r"(?<=\$)SLURM_[A-Z_]+|\b_?ACCEL_[A-Z_]*[A-Z]\b", text)}
    if re.search(r"\benviron", source):
        found |= {text for text in texts if re.fullmatch(r"(?!SIG|RLIMIT_|SC_)[A-Z][A-Z0-9_]+", text)}
    return found - NO_VARIABLES


def in_the_packages() -> set[str]:
    modules = sorted(PACKAGES.glob("*/src/**/*.py"))
    return {name for module in modules for name in variables_in(module.read_text())} | {
        str(option.envvar) for option in OPTIONS if option.envvar
    }


def in_the_tables(page: Path) -> list[str]:
    cells = re.findall(r"^\| (`[^|]*`) \|", page.read_text(), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_page_has_each_variable_once() -> None:
    listed = in_the_tables(PAGE)
    assert len(listed) == len(set(listed))
    assert sorted(listed) == sorted(in_the_packages()), "the page and the code differ"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("environ['NEW_ONE']", {"NEW_ONE"}),
        ("NAME = 'ACCEL_NEW'", {"ACCEL_NEW"}),
        ("TEMPLATE = '{name: ACCEL_NEW, n: $SLURM_NEW}'", {"ACCEL_NEW", "SLURM_NEW"}),
        ("COMPLETE = '_ACCEL_NEW'", {"_ACCEL_NEW"}),
        ("KINDS = {'BF16'}", set()),
    ],
)
def test_a_new_variable_is_found(source: str, names: set[str]) -> None:
    assert variables_in(source) == names
