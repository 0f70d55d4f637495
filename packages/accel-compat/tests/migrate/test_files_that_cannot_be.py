"""One file that cannot be rewritten ends no run; notebooks and scripts keep what only they have."""

import json
import subprocess
from pathlib import Path

import pytest
from accel_compat.migrate.notebook import rewrite_notebook
from accel_compat.migrate.report import Kind
from accel_compat.migrate.shell_commands import rewrite_commands
from accel_launch.cli.program import main


def notebook(*sources: str, ascii_only: bool = True) -> str:
    cells = [{"cell_type": "code", "source": source, "outputs": [], "metadata": {}} for source in sources]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}, indent=1, ensure_ascii=ascii_only) + "\n"


def sources(text: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep.py", "import accelerate\nx = " + "(" * 500 + ")" * 500 + "\n"),
        ("half.ipynb", notebook("import accelerate", "x = '\ud83d'").replace("\n", "\n ", 1)),
        ("cut.ipynb", notebook("import accelerate")[:-9]),
    ],
)
def test_the_other_files_are_rewritten(name: str, content: str, tmp_path: Path) -> None:
    """S182: and what is refused stays as it is."""
    (tmp_path / name).write_text(content)
    (tmp_path / "train.py").write_text("import accelerate\n")
    code = main(["migrate", str(tmp_path / name), str(tmp_path / "train.py")])
    assert (tmp_path / "train.py").read_text() == "import accel as accelerate\n"
    assert code == (0 if name == "half.ipynb" else 2)
    if code == 2:
        assert (tmp_path / name).read_text() == content
    else:
        assert sources((tmp_path / name).read_text()) == ["import accel as accelerate", "x = '\ud83d'"]


def test_a_report_is_printed_in_any_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    (tmp_path / "train.py").write_text("import accelerate\nx = 'accelerate launch caf\xe9'\n")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["migrate", str(tmp_path / "train.py")]) == 0
    out.flush()
    assert b"caf\\xe9" in out.buffer.getvalue()


def test_line_ends_of_windows_stay_in_a_notebook() -> None:
    text = notebook("import accelerate").replace("\n", "\r\n")
    assert rewrite_notebook(text).text == text.replace("import accelerate", "import accel as accelerate")


def test_all_but_the_cells_stays_to_the_byte() -> None:
    """S182: numbers that Python would write otherwise, keys that are there twice, odd spaces."""
    text = notebook("import accelerate").replace("4\n", '1e400,  "nbformat": 5, "source": "import accelerate"\n')
    assert rewrite_notebook(text).text == text.replace("import accelerate", "import accel as accelerate", 1)


@pytest.mark.parametrize(
    ("cells", "after"),
    [
        (
            ["import accelerate", "x\npass  # notebook line 7\n!ls"],
            ["import accel as accelerate", "x\npass  # notebook line 7\n!ls"],
        ),
        (
            ["import accelerate\nx = !accelerate env\n!accelerate launch \\\n  --multi_gpu t.py"],
            ["import accel as accelerate\nx = !accel env\n!accel launch t.py"],
        ),
        (["import accelerate\nawait f()\nx.y?\n"], ["import accel as accelerate\nawait f()\nx.y?\n"]),
        (["import accelerate\nx = (7\n% 2)"], ["import accel as accelerate\nx = (7\n% 2)"]),
        (["import accelerate\n%time f()\nx = (7\n% 2)"], ["import accel as accelerate\n%time f()\nx = (7\n% 2)"]),
        (
            ["import accelerate.utils", "accelerate.utils.operations.gather(1)"],
            ["import accel as accelerate", "accelerate.utils.operations.gather(1)"],
        ),
    ],
)
def test_cells_know_each_other_and_lines_for_the_notebook_stay(cells: list[str], after: list[str]) -> None:
    new = rewrite_notebook(notebook(*cells))
    assert sources(new.text) == after
    assert rewrite_notebook(new.text).text == new.text


def test_a_program_inside_another_text_is_said() -> None:
    words = "Python inside another text imports Accelerate"
    cell = "%%writefile train.py\nimport accelerate\n"
    new = rewrite_notebook(notebook(cell))
    assert sources(new.text) == [cell]
    assert words in new.notes[0].words
    assert words in rewrite_commands("python - <<EOF\nfrom accelerate import x\nEOF\n").notes[0].words


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("accelerate launch --monitor_interval $((60*5)) t.py", "accel launch t.py"),
        ('accelerate launch --monitor_interval "$(f "a b")" t.py', 'accel launch --monitor_interval "$(f "a b")" t.py'),
        ("accelerate launch --monitor_interval `f 1` t.py", "accel launch t.py"),
        ("accelerate launch --monitor_interval $(f $(g)) t.py", "accel launch --monitor_interval $(f $(g)) t.py"),
        ("accelerate launch --monitor_interval=$(f) t.py", "accel launch t.py"),
        ("accelerate launch --num_processes $(nproc) --multi_gpu t.py", "accel launch --num_processes $(nproc) t.py"),
        (
            "export ACCELERATE_USE_CPU=1; mkdir out_$ACCELERATE_USE_CPU/${ACCELERATE_USE_CPU}",
            "export ACCEL_USE_CPU=1; mkdir out_$ACCEL_USE_CPU/${ACCEL_USE_CPU}",
        ),
    ],
)
def test_a_value_that_the_shell_computes_stays_whole(before: str, after: str) -> None:
    """S182: an option that cannot be read is left to a person."""
    new = rewrite_commands(f"{before}\n")
    assert new.text == f"{after}\n"
    assert subprocess.run(["bash", "-n"], input=new.text, text=True, check=False).returncode == 0
    if "monitor_interval" in after:
        assert Kind.BY_HAND in {note.kind for note in new.notes}
