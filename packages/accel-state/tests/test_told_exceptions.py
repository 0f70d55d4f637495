"""What is told of an exception: of any kind, of any length, and with any characters."""

import json
import sys
from pathlib import Path

import pytest
from accel_comm import PeerLost
from accel_state.failure_file import MOST_LINES, MOST_OF_LINE, FailureFile, describe, printable, shorten


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Numeric(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value] # as a script may have it


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 (with its traceback)
        return caught


@pytest.mark.parametrize("kind", [Mute, Numeric])
def test_an_exception_whose_text_fails_is_told_by_its_name(kind: type[Exception]) -> None:
    told = describe(raised(kind()))
    assert told["what"] == f"{kind.__module__}.{kind.__name__}: <exception str() failed>"
    assert "in raised: raise error" in told["site"]
    assert told["traceback"].startswith("Traceback")


def test_all_parts_of_a_group_are_told_each_with_its_line() -> None:
    inner = ExceptionGroup("inner", [raised(KeyError("b")), Mute()])
    told = describe(raised(ExceptionGroup("outer", [raised(ValueError("a\nmore")), inner, raised(OSError(3, "c"))])))
    first, *parts = told["what"].split("\n")
    assert first == "ExceptionGroup: outer (3 sub-exceptions)"
    texts = [part.partition(", at ") for part in parts]
    assert [text for text, _, _ in texts] == [
        "ValueError: a",
        "KeyError: 'b'",
        f"{__name__}.Mute: <exception str() failed>",
        "ProcessLookupError: [Errno 3] c",
    ]
    assert ["in raised: raise error" in place for _, _, place in texts] == [True, True, False, True]
    assert "in raised: raise error" in told["site"]


def test_of_a_group_of_thousands_the_first_are_told() -> None:
    """Each costs milliseconds, and the process that tells them is about to end."""
    told = describe(ExceptionGroup("many", [ValueError(number) for number in range(3000)]))
    first, *parts = told["what"].split("\n")
    assert first == "ExceptionGroup: many (3000 sub-exceptions)"
    assert parts == [f"ValueError: {number}" for number in range(MOST_LINES)]


@pytest.mark.parametrize(("others", "lost"), [([], True), ([ValueError("no")], False)])
def test_a_group_is_the_loss_of_a_peer_if_all_its_parts_are(others: list[Exception], lost: bool) -> None:
    error = PeerLost("rank 0 lost another process (Connection closed by peer)")
    for parts in ([error, *others], [*others, error]):
        assert describe(ExceptionGroup("several", parts))["lost_peer"] == lost


def test_a_syntax_error_in_a_group_has_its_place() -> None:
    with pytest.raises(SyntaxError) as refusal:
        compile("x = 1\nif x ==:\n", "script.py", "exec")
    told = describe(ExceptionGroup("several", [refusal.value]))
    assert told["site"] == "script.py:2: if x ==:"
    assert told["what"].split("\n")[1] == "SyntaxError: invalid syntax, at script.py:2: if x ==:"


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    told = describe(ValueError("begin" + "x" * 5_000_000 + "end"))
    assert told["what"].startswith("ValueError: beginxxx")
    assert told["what"].endswith("xxxend")
    assert all(len(told[name]) < 2 * MOST_OF_LINE for name in ("what", "traceback"))
    lines = shorten("\n".join(map(str, range(1_000_000)))).split("\n")
    assert lines[MOST_LINES - 1 : MOST_LINES + 2] == ["99", "  ... 999800 lines ...", "999900"]
    assert shorten("a\n b") == "a\n b"


def test_nothing_that_a_terminal_obeys_is_printable() -> None:
    assert printable("\33]0;title\7 ok\r\n\tä \u202e \x9b \udcff", "\n\t") == (
        "\\x1b]0;title\\x07 ok\\r\n\tä \\u202e \\x9b \\udcff"
    )
    assert printable("a\nb") == "a\\nb"


def test_one_that_lost_a_peer_prints_one_short_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atexit.register", lambda call: None)
    monkeypatch.setattr("threading.excepthook", None)
    monkeypatch.setattr(sys, "excepthook", None)
    failure = FailureFile(tmp_path / "told.json", None, "3")
    error = raised(PeerLost("\33[2J Connection closed by " + "x" * 5_000_000 + "\nmore"))
    failure._raised(PeerLost, error, None)
    said = capsys.readouterr().err
    assert said.startswith("accel: rank 3 lost another process: PeerLost: \\x1b[2J Connection closed by xxx")
    assert said.count("\n") == 1
    assert len(said) < 2 * MOST_OF_LINE
    assert json.loads((tmp_path / "told.json").read_text())["lost_peer"]
