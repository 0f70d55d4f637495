"""The rules of docs/architecture.md that a machine can check."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from accel_comm.flight_recorder import OURS
from repository import (
    ROOT,
    all_sources,
    import_name,
    imports,
    is_described_in_base,
    module_name,
    projects,
    requirement_name,
    sources,
    tree_of,
    where,
)
from torch.utils._device import _device_constructors

# What each package may import of the others: layers 0 to 3, the facade on top.
MAY_IMPORT = {
    "accel-comm": set(),
    "accel-state": {"accel-comm"},
    "accel-checkpoint": set(),
    "accel-testing": set(),
    "accel-ops": {"accel-comm", "accel-state"},
    "accel-amp": {"accel-comm", "accel-state"},
    "accel-big": {"accel-state", "accel-ops", "accel-checkpoint"},
    "accel-launch": {"accel-comm", "accel-state"},
    "accel-submit": {"accel-state", "accel-launch"},
    "accel-track": {"accel-state"},
    "accel-runs": {"accel-state", "accel-track"},
    "accel-data": {"accel-comm", "accel-state", "accel-ops"},
    "accel-parallel": {"accel-comm", "accel-state", "accel-amp"},
    "accel-deepspeed": {"accel-comm", "accel-state", "accel-amp", "accel-parallel"},
    "accel-sequence": {"accel-state"},
    "accel-names": {"accel-comm", "accel-state", "accel-ops", "accel-amp", "accel-big", "accel-checkpoint"}
    | {"accel-data", "accel-parallel", "accel-launch"},
    "accel": {"accel-comm", "accel-state", "accel-ops", "accel-amp", "accel-big", "accel-checkpoint"}
    | {"accel-data", "accel-parallel", "accel-sequence", "accel-launch", "accel-names", "accel-track", "accel-runs"},
    "accel-compat": {"accel-state", "accel-launch", "accel-names", "accel"},
    "accel-verify": {"accel-state", "accel-checkpoint", "accel-launch", "accel"},
    "accel-chaos": {"accel-comm", "accel-state", "accel-ops", "accel-checkpoint", "accel-launch", "accel"}
    | {"accel-verify"},
    "accel-rehearse": {"accel-comm", "accel-state", "accel-ops", "accel-launch", "accel", "accel-verify"},
}
# Import names of third parties that differ from the names of their distributions.
DISTRIBUTION_OF = {"yaml": "pyyaml", "PIL": "pillow", "pytest_timeout": "pytest-timeout"}
# Libraries that are used when they are there: the files that may import them, inside functions.
OPTIONAL = {
    "torch_xla": {"accel-state"},
    "torchdata": {"accel-data"},
    "torch": {"accel-launch"},
    "cloudpickle": {"accel-launch", "accel-testing"},
    "numpy": {"accel-testing"},
    "pytest-timeout": {"accel-testing"},
}
# accel-compat has the door open for processes that a program starts, and takes no time for imports.
READS_ENVIRONMENT = {"accel-compat", "accel-launch", "accel-testing"}
THE_CELL = {"acquire", "current", "release"}
# accel-big ends the run that a user's module starts when it is imported; functions of Accelerate act on the run of the
# process.
READS_THE_CELL = {"accel", "accel-big", "accel-names", "accel-state"}
SEAMS = {
    "Environment",
    "Device",
    "Transport",
    "PointToPoint",
    "OneProcess",
    "Strategy",
    "Steps",
    "StrategyOptions",
    "Precision",
    "ProcessControl",
    "_StateOfProcess",
    "ProgramScheduler",
    "Scheduler",
}
#: what scripts for Accelerate import from, and no module of ours does
PATHS_OF_SCRIPTS = (
    "accel.big_modeling",
    "accel.commands",
    "accel.data_loader",
    "accel.inference",
    "accel.state",
    "accel.test_utils",
    "accel.utils",
)
DRAWERS = {"util", "utils", "helper", "helpers", "common", "misc"}
#: what torch.set_default_device changes
MAKES_TENSORS = {function.__name__ for function in _device_constructors()}
MAY_UNPICKLE = {"torch.load": {"accel_checkpoint.load"}}
MAX_FILES = 24
#: the table of what an Accelerator can do: as long as it has names
FACADE = "packages/accel/src/accel/accelerator.py"


@pytest.mark.parametrize("package", sorted(projects()))
def test_a_package_imports_what_it_declares_and_declares_what_it_imports(package: str) -> None:
    project = projects()[package]
    declared = {requirement_name(line).lower() for line in project["dependencies"]}
    extras = {requirement_name(line) for lines in project.get("optional-dependencies", {}).values() for line in lines}
    used = set()
    for path in sources(package):
        for module, _ in imports(tree_of(path), module_level=False):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top == import_name(package):
                continue
            name = (
                DISTRIBUTION_OF.get(top, top).replace("_", "-")
                if top.startswith("accel")
                else DISTRIBUTION_OF.get(top, top)
            )
            if package in OPTIONAL.get(name, ()):
                continue
            used.add(name)
    assert used - declared - extras == set(), "imported but not declared"
    # The facade imports names of the first two when somebody asks for them; the third brings a command.
    assert declared - used - {"accel-launch", "accel-big", "accel-runs"} == set(), "declared but not imported"


def test_calls_of_a_script_are_told_with_its_own_line() -> None:
    """What a script calls of ours, down to an exchange, is passed over."""
    required = {requirement_name(line) for line in projects()["accel"]["dependencies"] if line.startswith("accel")}
    callees = {"accel", "accel-deepspeed"} | required - {"accel-track", "accel-runs"}
    assert {*map(import_name, callees), "contextlib", "functools", "logging"} == OURS


def test_packages_only_import_packages_below_them() -> None:
    assert set(MAY_IMPORT) == set(projects())
    for package, project in projects().items():
        ours = {requirement_name(line) for line in project["dependencies"] if line.startswith("accel")}
        assert ours <= MAY_IMPORT[package], package


def test_names_of_accelerate_are_reached_when_somebody_asks() -> None:
    """The paths of scripts import them, and nothing of the facade imports these paths."""
    for package in set(projects()) - {"accel-names"}:
        for path in sources(package):
            at_import = {module for module, _ in imports(tree_of(path), module_level=True)}
            if not module_name(path).startswith(PATHS_OF_SCRIPTS):
                assert not [name for name in at_import if name.split(".")[0] == "accel_names"], where(path)
                assert package != "accel" or not [name for name in at_import if name.startswith(PATHS_OF_SCRIPTS)]


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {module_name(path): path for path in all_sources()}
    edges: dict[str, set[str]] = {}
    for name, path in known.items():
        targets = set()
        for module, names in imports(tree_of(path), module_level=True):
            targets |= {f"{module}.{one}" for one in names if f"{module}.{one}" in known} or {module}
        edges[name] = {target for target in targets if target in known and target != name}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in sorted(edges[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(known):
        visit(name, ())


def test_torch_free_packages_leave_torch_alone() -> None:
    modules = [
        module_name(path)
        for name in ("accel-comm", "accel-state", "accel-launch", "accel-submit", "accel-track", "accel-runs")
        for path in sources(name)
        if path.name not in ("__main__.py", "sitecustomize.py")
    ]
    modules += [
        "accel",
        "accel_compat.startup",
        "accel_compat.distribution",
        "accel_compat.migrate.command",
        "accel_testing",
        "accel_big.command",
        "accel_rehearse.command",
        "accel_verify.command",
        "accel_verify.consumption_log",
    ]
    code = f"import sys, importlib\nfor m in {modules!r}:\n"
    code += "    importlib.import_module(m)\n    assert 'torch' not in sys.modules, m\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_environment_is_read_in_one_place() -> None:
    for package in set(projects()) - READS_ENVIRONMENT:
        for path in sources(package):
            if module_name(path) == "accel_state.environ":
                continue
            for node in ast.walk(tree_of(path)):
                reads = isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv")
                assert not reads, where(path, node)


def test_only_the_facade_reads_the_cell_of_global_state() -> None:
    for package in set(projects()) - READS_THE_CELL:
        for path in sources(package):
            for module, names in imports(tree_of(path), module_level=False):
                reads = module == "accel_state.run_context" or (module == "accel_state" and THE_CELL & set(names))
                assert not reads, where(path)


def test_global_state_is_one_cell() -> None:
    holders = {
        module_name(path)
        for path in all_sources()
        if not path.is_relative_to(ROOT / "packages" / "accel-testing")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Global)
    }
    assert holders == {"accel_state.run_context"}


def test_what_workers_of_tests_preload_is_there(pytestconfig: pytest.Config) -> None:
    """A fork server leaves out, without a word, what it cannot import."""
    known = {module_name(path) for path in all_sources()}
    named = {module for module in pytestconfig.getini("world_preload") if module.startswith("accel")}
    assert named
    assert named <= known


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) - _docstring_lines(tree_of(path)) for path in all_sources()}
    assert {where(path) for path, count in lengths.items() if count > 300} - {FACADE} == set()
    tests = [path for folder in ("packages", "tests-integration") for path in (ROOT / folder).rglob("test_*.py")]
    assert {where(path) for path in tests if len(path.read_text().splitlines()) > 400} == set()


def _docstring_lines(tree: ast.Module) -> int:
    holders = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    texts = [ast.get_docstring(node, clean=False) for node in holders]
    return sum(len(text.splitlines()) for text in texts if text is not None)


def test_a_folder_holds_no_more_files_than_a_reader_takes_in() -> None:
    parts = ("packages/*/src", "packages/*/tests", "tests-integration")
    folders = {path.parent for part in parts for path in ROOT.glob(f"{part}/**/*.py")}
    counts = {where(folder): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MAX_FILES} == {}, "make folders in it"


def test_no_two_modules_define_a_public_class_of_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in all_sources():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(where(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}, "one word, one meaning"


def test_a_file_is_named_after_its_job() -> None:
    drawers = [path for path in all_sources() if DRAWERS & {path.stem, path.parent.name}]
    folder = "packages/accel/src/accel/utils/"
    assert [where(path) for path in drawers if not where(path).startswith(folder)] == []
    # The one exception is a path that scripts import from: it may hold other modules' names and nothing else.
    for path in drawers:
        for node in tree_of(path).body[1:]:
            typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "(__getattr__, __dir__)"
            assert isinstance(node, ast.ImportFrom) or typed or names, where(path, node)


def test_public_names_are_those_that_were_decided() -> None:
    found = {}
    for package in map(import_name, sorted(projects())):
        names = vars(import_module(package)).get("__all__")
        if names is not None:
            found[package] = sorted(names)
    decided = json.loads((Path(__file__).parent / "public_names.json").read_text())
    assert found == decided, "a change of public names is a decision: write it into public_names.json"


def test_what_takes_a_transport_says_who_must_call() -> None:
    for path in all_sources():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            arguments = [*node.args.args, *node.args.kwonlyargs]
            takes = any(one.annotation is not None and "Transport" in ast.unparse(one.annotation) for one in arguments)
            if takes:
                assert "Collective" in (ast.get_docstring(node) or ""), where(path, node)


def test_a_class_is_abstract_or_final() -> None:
    for path in all_sources():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ClassDef) or not SEAMS & {ast.unparse(base) for base in node.bases}:
                continue
            final = any(ast.unparse(one) == "final" for one in node.decorator_list)
            assert final or node.name in SEAMS, where(path, node)


def test_every_public_thing_has_a_docstring() -> None:
    for path in all_sources():
        assert ast.get_docstring(tree_of(path)), where(path)
        for holder in _public_holders(tree_of(path)):
            for node in holder.body:
                if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                    continue
                stub = isinstance(node.body[-1], ast.Expr) and ast.unparse(node.body[-1]) == "..."
                setter = any("setter" in ast.unparse(one) for one in node.decorator_list)
                known = node.name == "forward"  # of a torch module
                described = ast.get_docstring(node) or is_described_in_base(holder, node)
                assert stub or setter or known or described, where(path, node)


def _public_holders(tree: ast.Module) -> list[ast.Module | ast.ClassDef]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return [tree, *classes]


def test_pickles_are_read_in_one_place_and_as_plain_weights() -> None:
    for path in all_sources():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in MAY_UNPICKLE:
                assert module_name(path) in MAY_UNPICKLE[ast.unparse(node.func)], where(path, node)
                assert any(one.arg == "weights_only" for one in node.keywords), where(path, node)
            if isinstance(node, ast.Attribute) and node.attr == "Unpickler":
                # objects of other ranks of the job; and records, whatever a file names
                modules = ("accel_ops.around_tensors", "accel_names.checkpoint.distributed_checkpoint")
                assert module_name(path) in modules, where(path, node)


def test_nothing_is_swallowed() -> None:
    for path in all_sources():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, where(path, node)
            assert not isinstance(node, ast.Assert), f"{where(path, node)}: an assert is no error message"


def test_a_package_of_ours_is_installed_from_a_clone() -> None:
    """No index has them under these names."""
    named = [path for path in all_sources() if re.search(r"pip install[\s'\"]+accel\b", path.read_text())]
    assert not named, "say: in a clone of accel, pip install ./packages/NAME"


def test_a_tensor_is_made_on_a_device_that_is_named() -> None:
    """A script may call torch.set_default_device("cuda"): what accel reads as memory of the CPU would not be there."""
    unnamed = [
        f"{where(path, call)}: {ast.unparse(call)}"
        for path in all_sources()
        if "accel_testing" not in path.parts
        for call in ast.walk(tree_of(path))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in MAKES_TENSORS
        if ast.unparse(call.func.value).rpartition(".")[2] in ("torch", "_torch")
        if "device" not in {keyword.arg for keyword in call.keywords}
    ]
    assert not unnamed, f"name a device, for memory of the CPU device='cpu': {unnamed}"
