"""Models that code makes: a module, a class, a function or a file is named, and run."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_state import is_initialized
from accel_state.errors import CannotRun
from estimates import told


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """What a module of the working directory makes is reported, as JSON; each test has a module of its own name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    name = f"models_of_{tmp_path.name}"

    def run(code: str, attribute: str) -> str:
        (tmp_path / f"{name}.py").write_text(code)
        before = list(sys.path)
        try:
            return told(f"{name}:{attribute}", "json")
        finally:
            assert sys.path == before
            sys.modules.pop(name, None)

    return run


@pytest.mark.parametrize("attribute", ["make", "Model", "one", "Model.another"])
def test_a_function_a_class_and_an_instance_are_models(module: Callable[[str, str], str], attribute: str) -> None:
    code = (
        "from torch import nn\n"
        "class Model(nn.Linear):\n"
        "    def __init__(self, width=2): super().__init__(width, 3)\n"
        "    @classmethod\n    def another(cls): return cls()\n"
        "def make(*args, **kwargs): return Model()\none = Model()\n"
    )
    assert json.loads(module(code, attribute))["as_built_bytes"] == 36


def test_a_constructor_that_looks_at_numbers_is_run_on_the_cpu_with_a_note(module: Callable[[str, str], str]) -> None:
    code = (
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Linear):\n    def __init__(self): super().__init__(int(torch.ones(4).sum().item()), 1)\n"
    )
    found = json.loads(module(code, "Model"))
    assert found["parameters"] == 5
    assert "built on the CPU" in found["notes"][0]
    assert "meta tensors" in found["notes"][0]


def test_what_the_code_prints_is_apart_and_its_run_ends(
    module: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accel", reason="the code that is named uses it")
    code = "from accel import Accelerator\nfrom torch import nn\nprint('hello')\n"
    code += "Accelerator(cpu=True)\none = nn.Linear(1, 1)"
    module(code, "one")
    assert capsys.readouterr() == ("", "hello\n")
    assert not is_initialized()


HEAD = "from torch import nn\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "def make(width, *, depth, heads=1): ...",
            "called without arguments, such as def make(): return Net(depth=2); missing a",
        ),
        ("def make(): return 3", ":make gives a int: expected a torch.nn.Module"),
        ("make = 3", ":make is a int: expected a torch.nn.Module, or what makes one"),
        ("def made(): ...", "' has no attribute 'make'"),
        ("def make():\n    return nn.Linear(2, -2)", "make raises RuntimeError: Trying to create"),
        ("def make():\n    return nn.Linear(2, -2)", ".py:3 in make: return nn.Linear(2, -2))"),
        ("raise ValueError('bad\\nluck')", "raises ValueError: bad\nluck (/"),
        ("raise SystemExit(3)", "raises SystemExit: 3 (/"),
        ("import no_such_module", "raises ModuleNotFoundError: No module named 'no_such_module' (/"),
        ("def make(:", "raises SyntaxError: invalid syntax (models_of_"),
        ("class make(nn.Module):\n    def __init__(self): assert False", "raises AssertionError (/"),
    ],
)
def test_mistakes_in_code_are_told_with_their_place(module: Callable[[str, str], str], code: str, words: str) -> None:
    with pytest.raises(CannotRun) as refused:
        module(HEAD + code, "make")
    assert len(refused.value.reasons) == 1
    assert words in refused.value.reasons[0]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("no_such_module:make", "there is no 'no_such_module' in the search path, which is\n"),
        ("json.nothing:make", "No module named 'json.nothing'"),
        ("__main__x:make", "is not found"),
        ("models.py:make", "'models.py:make': there is no file models.py in "),
        ("there.py:", "is neither a file nor a folder in"),
        ("there.py:make", "module '__model__' has no attribute 'make'"),
        ("models:", "Expected MODULE:NAME or FILE.py:NAME"),
        ("bert-base-cased", "Models of the hub are not downloaded"),
        ("weights.safetensors", "is neither a file nor a folder in"),
    ],
)
def test_what_is_not_there_is_told(model: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("only = 1")
    with pytest.raises(CannotRun) as refused:
        told(model)
    assert words in refused.value.reasons[0]
    assert ("search path" not in words) or (str(tmp_path) in refused.value.reasons[0])


def test_a_file_finds_its_neighbours_and_keeps_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "neighbour_of_it.py").write_text("import torch\nmodel = torch.nn.Linear(2, 3)")
    (tmp_path / "json.py").write_text("from neighbour_of_it import model")
    # As in an interactive interpreter: the working directory is found, and it is another one.
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    before = list(sys.path)
    assert f"{tmp_path}/json.py:model, a Linear: 9 parameters" in told(f"{tmp_path}/json.py:model")
    assert sys.path == before
