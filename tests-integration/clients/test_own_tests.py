"""The tests of Accelerate's source distribution, through the door: what passes, and what cannot and why.

`nox -s clients` has an environment with Accelerate 1.15 and takes the source distribution from the package index.
"""

import os
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

import pytest
from accel_testing import stretched
from repository import ROOT
from silent_environ import silent

PEER = "1.15.0"
TABLE = Path(__file__).with_name("own_tests_that_differ.toml")
PAGE = ROOT / "docs" / "guides" / "differences-from-accelerate.md"
#: each test that cannot pass, and the heading of the page that says why
CANNOT = {test: why for why, tests in tomllib.loads(TABLE.read_text()).items() for test in tests.split()}
#: how many tests may differ
MOST = 40
#: what pytest is to leave alone: plug-ins of this repository, and tests that need devices or examples
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:accel_testing", "-q", "-n", "2", "--timeout", "300", "-W", "ignore")
asked = pytest.mark.skipif("ACCEL_CLIENTS" not in os.environ, reason="they take minutes: nox -s clients runs them")


@pytest.fixture(scope="session")
def sources(pytestconfig: pytest.Config) -> Path:
    """The unpacked source distribution, kept from one session to the next; skipped where it is not to be had."""
    try:
        if version("accelerate") != PEER:
            raise PackageNotFoundError
    except PackageNotFoundError:
        pytest.skip(f"needs accelerate {PEER}")
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("accelerate-sdist")
    archive = folder / f"accelerate-{PEER}.tar.gz"
    if not archive.exists():
        which = ("--no-deps", "--no-binary", ":all:", f"accelerate=={PEER}")
        command = [sys.executable, "-m", "pip", "download", *which, "--dest", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"the source distribution of accelerate {PEER} is not to be had: {done.stderr[-300:]}")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / f"accelerate-{PEER}"


def outcomes(sources: Path, folder: Path, **variables: str) -> dict[str, str]:
    """Run all tests, and return the outcome of each: "passed", or why not."""
    (folder / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    report = folder / "report.xml"
    environ = {**silent(folder), "HF_HUB_OFFLINE": "1", **variables}
    where = ("-c", str(folder / "pytest.ini"), f"--rootdir={sources}", f"--junitxml={report}")
    command = [sys.executable, "-m", "pytest", *OPTIONS, *where, str(sources / "tests")]
    done = subprocess.run(
        command, cwd=sources, env=environ, capture_output=True, text=True, timeout=stretched(1500), check=False
    )
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        worse = [part for part in case if part.tag in ("failure", "error", "skipped")]
        name = f"{case.get('classname')}.{case.get('name')}".removeprefix("tests.")
        found[name] = "; ".join(f"{part.tag}: {part.get('message')}" for part in worse) or "passed"
    return found


@asked
@pytest.mark.timeout(3600)
def test_what_passes_on_accelerate_passes_here_but_for_what_differs(sources: Path, tmp_path: Path) -> None:
    """S184: and each test that is said to differ does."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    there = outcomes(sources, tmp_path / "theirs")
    here = outcomes(sources, tmp_path / "ours", ACCEL_AS_ACCELERATE="1")
    passing = [name for name, outcome in there.items() if outcome == "passed"]
    assert len(passing) > 250, "most tests of Accelerate have to run where it is compared"
    lacking = {name: here.get(name, "not collected") for name in passing if here.get(name) != "passed"}
    assert {name: why[:500] for name, why in lacking.items() if name not in CANNOT} == {}
    better = [name for name in CANNOT if here.get(name) == "passed" or name not in passing]
    assert better == [], "they are said to differ: take them off the list"


def test_each_difference_has_its_place_in_the_page() -> None:
    assert len(CANNOT) <= MOST
    headings = {line.removeprefix("## ") for line in PAGE.read_text().splitlines() if line.startswith("## ")}
    assert {*CANNOT.values()} == headings, "the headings of the page and of the table are the same"
