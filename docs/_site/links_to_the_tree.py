"""Lets a page link to a document or a folder outside of docs: the site carries a copy of the document.

On GitHub the same link opens the document in the tree.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the change of links with Sphinx."""
    app.connect("source-read", carry_documents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def carry_documents(app: Sphinx, page: str, source: list[str]) -> None:
    """Rewrites the links of a page that leave docs, as MyST looks only inside for documents."""
    folder = (Path(app.srcdir) / page).parent

    def rewritten(match: re.Match[str]) -> str:
        target = (folder / match["path"]).resolve()
        if target.is_relative_to(app.srcdir) or not target.exists():
            return match[0]
        path = f"{match['path'].rstrip('/')}/README.md" if target.is_dir() else match["path"]
        return f"](path:{path})"

    source[0] = LINK.sub(rewritten, source[0])
