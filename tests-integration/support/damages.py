"""Ways in which a file of a record can be damaged."""

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

#: what becomes of the content of a file
CONTENT: dict[str, Callable[[bytes], bytes]] = {
    "NULs in a line": lambda content: content[:10] + b"\0" * 40 + content[50:],
    "NULs at the end": lambda content: content + b"\0" * 4096,
    "NULs alone": lambda content: b"\0" * len(content),
    "latin-1": lambda content: content.replace(b'"', b'"\xe9', 1),
    "truncated": lambda content: content[:-9],
    "a third of it": lambda content: content[: len(content) // 3],
    "a list for an object": lambda content: b"[1, 2]\n" + content.partition(b"\n")[2] * (content[:2] != b"{\n"),
    "null for an object": lambda content: b"null\n" + content.partition(b"\n")[2] * (content[:2] != b"{\n"),
    "texts for numbers": lambda content: re.sub(rb'"(n|step)": ?\d+', rb'"\1":"one"', content, count=2),
    "NaN for numbers": lambda content: re.sub(rb'"(n|step)": ?\d+', rb'"\1":NaN', content, count=2),
    "a huge number": lambda content: re.sub(rb'"(n|step)": ?\d+', rb'"\1":1' + b"0" * 400, content, count=2),
    "a number of too many digits": lambda content: re.sub(
        rb'("(n|seed|world)": ?)\d+', rb"\g<1>" + b"1" * 5000, content, count=1
    ),
    "values of other types": lambda content: re.sub(rb'("metrics"|"table"|"git"): ?', rb"\1:[[]],", content, count=1),
    "deep nesting": lambda content: b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n" + content,
    "a huge line": lambda content: b"x" * 2**22 + b"\n" + content,
    "twice the same": lambda content: content + content,
    "empty": lambda content: b"",
}
#: what becomes of the file itself
FILE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("gone")),
}
FORBIDDEN = "no permission"
DAMAGES = (*CONTENT, *FILE, FORBIDDEN)


def damage(path: Path, how: str) -> None:
    """Damages a file; without permission it stays as it is (`forbidden`)."""
    if how in CONTENT:
        path.write_bytes(CONTENT[how](path.read_bytes()))
    elif how in FILE:
        FILE[how](path)


def forbidden(path: Path) -> Any:
    """In this block a file cannot be opened, also by root, as long as it is there by this name."""
    inode, os_open, io_open = path.stat().st_ino, os.open, io.open

    def refuse(asked: Any) -> None:
        if isinstance(asked, str | Path) and os.path.exists(asked) and os.stat(asked).st_ino == inode:
            raise PermissionError(13, "Permission denied", str(asked))

    def open_of_os(asked: Any, *rest: Any, **options: Any) -> Any:
        refuse(asked)
        return os_open(asked, *rest, **options)

    def open_of_io(asked: Any, *rest: Any, **options: Any) -> Any:
        refuse(asked)
        return io_open(asked, *rest, **options)

    class Both:
        def __enter__(self) -> None:
            self.patches = [patch.object(os, "open", open_of_os), patch.object(io, "open", open_of_io)]
            for one in self.patches:
                one.start()

        def __exit__(self, *_: object) -> None:
            for one in self.patches:
                one.stop()

    return Both()
