"""Links to the documentation of Python and torch, from lists in inventories/, so that the site is made offline.

A line of a list is what Sphinx calls an entry of an inventory: name, kind, priority, address and title.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

LISTS = Path(__file__).parent / "inventories"
ADDRESSES = {"python": "https://docs.python.org/3", "torch": "https://docs.pytorch.org/docs/stable"}


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the inventories with Sphinx."""
    # before intersphinx looks at its mapping
    app.connect("config-inited", write, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(app: Sphinx, config: Config) -> None:
    """Writes each list as the file that intersphinx reads."""
    folder = Path(app.doctreedir)
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for project, address in ADDRESSES.items():
        path = folder / f"{project}.inv"
        path.write_bytes(inventory(project, (LISTS / f"{project}.txt").read_text(encoding="utf-8")))
        mapping[project] = (address, str(path))
    config.intersphinx_mapping = mapping


def inventory(project: str, entries: str) -> bytes:
    """The content of an inventory; lines that begin with # are left out.

    Source: sphinx.util.inventory, version 2.
    """
    lines = [line for line in entries.splitlines() if line and not line.startswith("#")]
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n# The rest is compressed by zlib.\n"
    return head.encode() + zlib.compress(("\n".join(lines) + "\n").encode())
