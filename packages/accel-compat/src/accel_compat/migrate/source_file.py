"""Migrate a file, whose bytes, encoding and kind say how."""

from __future__ import annotations

import io
import re
import tokenize
from codecs import BOM_UTF8
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accel_compat.migrate.config_file import rewrite_config
from accel_compat.migrate.notebook import rewrite_notebook
from accel_compat.migrate.python_code import rewrite_python
from accel_compat.migrate.report import CannotRewrite, Rewritten
from accel_compat.migrate.shell_commands import rewrite_commands

#: the function that rewrites a file, by a pattern of its name or of the beginning of its first line
_KINDS: tuple[tuple[str, bytes, Callable[[Path, str], Rewritten]], ...] = (
    (r".*\.pyw?", rb"#!.*python", lambda path, text: rewrite_python(text)),
    (r".*\.ipynb", rb"(?!)", lambda path, text: rewrite_notebook(text)),
    (r".*\.(yaml|yml|json)", rb"(?!)", rewrite_config),
    (
        r".*\.(sh|bash|zsh|slurm|sbatch|pbs)|Dockerfile|Makefile",
        rb"#!.*sh",
        lambda path, text: rewrite_commands(text),
    ),
)


@dataclass(frozen=True, slots=True)
class Migration:
    """A file with its text before and after.

    Args:
        path: Path of the file.
        before: Its text.
        after: Its new text, with notes.
        encoding: Its encoding.
    """

    path: Path
    before: str
    after: Rewritten
    encoding: str

    @property
    def changes(self) -> bool:
        """True if there is anything to write."""
        return self.after.text != self.before

    @property
    def content(self) -> bytes:
        """The bytes that the file is to hold."""
        return self.after.text.encode(self.encoding, "surrogateescape")


def migrate(path: Path) -> Migration:
    """Return what a migration of a file would write.

    Raises:
        CannotRewrite: The file cannot be read, is of no kind that is rewritten, or is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CannotRewrite(f"it cannot be read: {error.strerror}") from None
    found = (row for row in _KINDS if re.fullmatch(row[0], path.name) or re.match(row[1], content[:100]))
    name, _, rewrite = next(found, ("", b"", None))
    if rewrite is None:
        kinds = "Python, notebooks (.ipynb), shell scripts and config files (.yaml, .json)"
        raise CannotRewrite(f"its kind is not among those that accel migrate knows: {kinds}")
    encoding = "utf-8-sig" if content.startswith(BOM_UTF8) else "utf-8"
    try:
        if name == _KINDS[0][0]:
            encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        # bytes that are no text stay what they are
        text = content.decode(encoding, "surrogateescape")
        return Migration(path, text, rewrite(path, text), encoding)
    except CannotRewrite:
        raise
    except SyntaxError as error:
        raise CannotRewrite(f"it is not Python: {error.msg}") from None
    except (RecursionError, UnicodeError) as error:
        raise CannotRewrite(f"it cannot be rewritten: {type(error).__name__}: {error}") from None
