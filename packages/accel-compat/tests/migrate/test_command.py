"""The command `accel migrate`."""

import errno
import os
from pathlib import Path

import pytest
from accel_launch.cli.program import main

BEFORE, AFTER = "import accelerate\r\nx = 1\r\n", "import accel as accelerate\r\nx = 1\r\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_bytes(BEFORE.encode())
    return path


def test_files_are_rewritten_and_the_report_says_what_was_done(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S182."""
    (script.parent / "run.sh").write_text("accelerate launch --tpu train.py\n")
    assert main(["migrate", "train.py", "run.sh"]) == 0
    assert script.read_bytes() == AFTER.encode()
    out, err = capsys.readouterr()
    assert "-import accelerate\n+import accel as accelerate\n" in out
    assert "run.sh:1: by hand: --tpu is not supported: accel launch cannot use TPUs yet; leave it out\n" in out
    assert err == "2 of 2 files changed; 1 places need a hand; see docs/guides/programs-for-accelerate.md\n"


def test_a_check_writes_nothing_and_its_exit_code_serves_ci(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S182: 1 before, 0 after."""
    assert main(["migrate", "--check", "train.py"]) == 1
    assert script.read_bytes() == BEFORE.encode()
    assert "-import accelerate\n+import accel as accelerate\n" in capsys.readouterr().out
    assert main(["migrate", "train.py"]) == 0
    assert main(["migrate", "--check", "train.py"]) == 0


def test_what_cannot_be_read_is_listed_after_the_others_are_done(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (script.parent / "old.py").write_text("print 'no'\n")
    assert main(["migrate", "old.py", "gone.py", "train.py"]) == 2
    assert script.read_bytes() == AFTER.encode()
    assert capsys.readouterr().err.splitlines()[1:] == [
        "accel: error: 2 problems",
        "  - old.py: line 1: it is not Python: Missing parentheses in call to 'print'. Did you mean print(...)?",
        "  - gone.py: it cannot be read: No such file or directory",
    ]


def test_a_link_is_followed_and_permissions_stay(script: Path) -> None:
    script.chmod(0o750)
    (script.parent / "link.py").symlink_to(script)
    assert main(["migrate", "link.py"]) == 0
    assert (script.parent / "link.py").is_symlink()
    assert script.read_bytes() == AFTER.encode()
    assert os.stat(script).st_mode & 0o777 == 0o750


def test_a_command_line_without_files_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate"]) == 2
    assert "FILES" in capsys.readouterr().err


def test_what_must_not_be_written_is_listed_at_once_and_nothing_is(
    script: Path, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Read-only files, links that leave the tree by themselves or by a folder; not links that stay in it."""
    elsewhere, here = tmp_path_factory.mktemp("elsewhere"), script.parent
    kept = {elsewhere / "library.py": 0o644, elsewhere / "other.py": 0o644, here / "frozen.py": 0o444, script: 0o644}
    for path, mode in kept.items():
        path.write_text(BEFORE)
        path.chmod(mode)
    (here / "out.py").symlink_to(elsewhere / "library.py")
    (here / "folder").symlink_to(elsewhere)
    (here / "link.py").symlink_to(script)
    names = ["train.py", "frozen.py", "out.py", "folder/other.py", "link.py"]
    before = {path: path.stat().st_ino for path in kept}
    assert main(["migrate", *names]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    frozen = "frozen.py: it is read-only: make it writable first, if it is to be rewritten"
    rest = f"which is outside of {here}: name that file, if it is to be rewritten"
    out = [
        f"{link}: it leads by a link to {elsewhere / target}, {rest}"
        for link, target in (("out.py", "library.py"), ("folder/other.py", "other.py"))
    ]
    assert "no file was changed" in said.err
    assert [line.removeprefix("  - ") for line in said.err.splitlines()[2:]] == [frozen, *out]
    assert {path: path.stat().st_ino for path in kept} == before
    assert all(path.read_text() == BEFORE.replace("\r\n", "\n") for path in kept)
    assert not list(here.glob("*.partial"))
    assert main(["migrate", "--check", *names]) == 2
    assert "frozen.py: it is read-only" in capsys.readouterr().err
    (here / "frozen.py").chmod(0o644)
    assert main(["migrate", "train.py", "link.py", "frozen.py", str(elsewhere / "library.py")]) == 0
    assert "import accel as accelerate\n" in (elsewhere / "library.py").read_text()


def test_a_disk_that_is_full_changes_no_file(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = script.parent / "second.py"
    second.write_text(BEFORE)
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name.startswith("second"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["migrate", "train.py", "second.py"]) == 2
    assert script.read_bytes() == BEFORE.encode()
    assert sorted(path.name for path in script.parent.iterdir()) == ["second.py", "train.py"]
