"""A file that is migrated: its bytes, its encoding and its kind."""

from __future__ import annotations

import io
import tokenize
from codecs import BOM_UTF8
from dataclasses import dataclass
from pathlib import Path

from accel_compat.migrate.report import CannotRewrite, Rewritten

_SHELL = (".sh", ".bash", ".zsh", ".slurm", ".sbatch", ".pbs")
_SHELL_NAMES = ("Dockerfile", "Makefile")
_CONFIG = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Migration:
    """A file with its text before and after."""

    path: Path
    before: str
    after: Rewritten
    encoding: str
    mark: bytes

    @property
    def changes(self) -> bool:
        """Whether there is anything to write."""
        return self.after.text != self.before

    @property
    def content(self) -> bytes:
        """What the file is to hold.

        Raises: UnicodeError if its encoding lacks a character.
        """
        return self.mark + self.after.text.encode(self.encoding)


def migrate(path: Path) -> Migration:
    """What a migration of a file would write.

    Raises: CannotRewrite if the file cannot be read, or is of no kind that is rewritten.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CannotRewrite(f"it cannot be read: {error.strerror}") from None
    mark = BOM_UTF8 if content.startswith(BOM_UTF8) else b""
    body = content.removeprefix(mark)
    kind = _kind(path, body)
    encoding = _encoding(body) if kind == "python" else "utf-8"
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError:
        if kind != "shell":
            raise CannotRewrite(f"it is not {encoding}: say its encoding, or save it as UTF-8") from None
        encoding = "latin-1"  # every byte is a character of it, and what is rewritten is ASCII
        text = body.decode(encoding)
    return Migration(path, text, _rewrite(kind, path, text), encoding, mark)


def _rewrite(kind: str, path: Path, text: str) -> Rewritten:
    if kind == "python":
        from accel_compat.migrate.python_code import rewrite_python

        return rewrite_python(text)
    if kind == "notebook":
        from accel_compat.migrate.notebook import rewrite_notebook

        return rewrite_notebook(text)
    if kind == "config":
        from accel_compat.migrate.config_file import rewrite_config

        new = rewrite_config(path, text)
        windows = "\r\n" in text and "\r\n" not in new.text
        return Rewritten(new.text.replace("\n", "\r\n"), new.notes) if windows else new
    from accel_compat.migrate.shell_commands import rewrite_commands

    return rewrite_commands(text)


def _kind(path: Path, body: bytes) -> str:
    first = body[:100].partition(b"\n")[0]
    if path.suffix in (".py", ".pyw") or (first.startswith(b"#!") and b"python" in first):
        return "python"
    if path.suffix == ".ipynb":
        return "notebook"
    if path.suffix in _CONFIG:
        return "config"
    if path.suffix in _SHELL or path.name in _SHELL_NAMES or (first.startswith(b"#!") and b"sh" in first):
        return "shell"
    kinds = "Python, notebooks (.ipynb), shell scripts and config files (.yaml, .json)"
    raise CannotRewrite(f"its kind is not among those that accel migrate knows: {kinds}")


def _encoding(body: bytes) -> str:
    """The encoding that a program of Python names, else UTF-8.

    Raises: CannotRewrite for an encoding that Python does not know.
    """
    try:
        return tokenize.detect_encoding(io.BytesIO(body).readline)[0]
    except SyntaxError as error:
        raise CannotRewrite(f"it is not Python: {error.msg}") from None
