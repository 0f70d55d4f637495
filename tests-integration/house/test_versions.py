"""One version for all packages, and exact pins between them."""

import re
from pathlib import Path

import pytest
from repository import PACKAGES, import_name, projects


def test_all_packages_have_one_version() -> None:
    assert len({project["version"] for project in projects().values()}) == 1


def test_siblings_are_pinned_to_that_version() -> None:
    for package, project in projects().items():
        for line in project["dependencies"]:
            if line.startswith("accel"):
                assert re.fullmatch(rf"accel[\w\[\]-]*=={re.escape(project['version'])}", line), f"{package}: {line}"


def test_every_package_has_the_same_shape() -> None:
    for package in projects():
        source = PACKAGES / package / "src" / import_name(package)
        assert (source / "py.typed").is_file(), package
        assert (PACKAGES / package / "LICENSE").read_text().strip().startswith("Apache License"), package
        assert len((PACKAGES / package / "README.md").read_text().splitlines()) > 5, f"{package}: README is a stub"
        assert list((PACKAGES / package / "tests").glob("test_*.py")), f"{package}: no tests"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_page_installs_every_package(page: str) -> None:
    """None is on the public index: pip finds those that others require in the same call alone.

    The plug-in of accel-testing would change the tests of other projects in that environment.
    """
    (line,) = re.findall(r"pip install (\./packages/.*)", (PACKAGES.parent / page).read_text())
    installed = {path.name for word in line.split() for path in PACKAGES.glob(Path(word).name)}
    assert installed == {*projects()} - {"accel-testing"}


def test_every_package_supports_what_is_promised() -> None:
    for package, project in projects().items():
        assert project["requires-python"] == ">=3.11", package
        torch = [line for line in project["dependencies"] if line.startswith("torch")]
        assert torch in ([], ["torch>=2.9"]), package
