"""Every public name has an entry in docs/reference, and the examples there run."""

import re
from pathlib import Path

import pytest
import reference_pages
from accel_state import release
from accel_testing import MakePool

BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
#: accelerator.md is one script, which test_accelerator_page.py runs
PAGES = sorted(set(reference_pages.PAGES.glob("accel*.md")) - {reference_pages.PAGES / "accelerator.md"})


def run_examples(path: Path) -> int:
    """Runs each example by itself, as a reader copies it."""
    import os

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    blocks = BLOCK.findall(path.read_text())
    for block in blocks:
        try:
            exec(compile(block, f"an example in {path.name}:\n{block}", "exec"), {})
        finally:
            release()
    return len(blocks)


@pytest.mark.parametrize("package", sorted(reference_pages.public_names()))
def test_every_public_name_has_an_entry(package: str) -> None:
    """S10: what is public is documented; `python tests-integration/tools/reference_pages.py` prints what to add."""
    problems = reference_pages.problems(package)
    assert not problems, "\n".join(problems)


def test_a_name_without_an_entry_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "# accel_submit\n\n## `Scheduler`\n\n```python\n1\n```\n\n## `Gone`\n"
    folder = tmp_path / "docs" / "reference"
    folder.mkdir(parents=True)
    (folder / "accel_submit.md").write_text(page)
    monkeypatch.setattr(reference_pages, "ROOT", tmp_path)
    monkeypatch.setattr(reference_pages, "PAGES", folder)
    no_directive, no_entry, not_public = reference_pages.problems("accel_submit")
    assert "Scheduler has no directive" in no_directive
    assert ".. autoclass:: accel_submit.SubmitRequest" in no_entry
    assert "Gone is no public name" in not_public


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_example_runs(world: MakePool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (count,) = world(1, join=False).run(run_examples, path)
    links = reference_pages.LINK.split("[")[0]
    assert count or links in path.read_text()
