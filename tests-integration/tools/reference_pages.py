"""The entries of docs/reference: `python tests-integration/tools/reference_pages.py` prints what is missing.

A package `accel_x` has the page docs/reference/accel_x.md. An entry is a heading with the name, the directive that
takes its docstring in, and an example that runs. A name that `accel` has too has its entry in accel.md, and a link in
other pages.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
ENTRY = re.compile(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
LINK = "The same as [`accel.{name}`](accel.md#{anchor})."
TEMPLATE = """## `{name}`

```{{eval-rst}}
.. {kind}:: {package}.{name}
```

```python
from {package} import {name}
```
"""
#: names with a page of their own
ELSEWHERE = {("accel", "Accelerator"): "accelerator.md"}


def public_names() -> dict[str, list[str]]:
    """The public names of each package, as they were decided."""
    names: dict[str, list[str]] = json.loads((Path(__file__).parents[1] / "house" / "public_names.json").read_text())
    return names


def entries(package: str) -> dict[str, str]:
    """The entries on the page of a package, by name."""
    path = PAGES / f"{package}.md"
    return dict(ENTRY.findall(path.read_text())) if path.exists() else {}


def problems(package: str) -> list[str]:
    """What the page of a package lacks, in words; each with what to write."""
    page, found, lines = PAGES / f"{package}.md", entries(package), []
    names = [name for name in public_names()[package] if (package, name) not in ELSEWHERE]
    if not page.exists():
        lines.append(f"write {page.relative_to(ROOT)}, which begins with '# {package}: what it is for'")
    for name in names:
        link = LINK.format(name=name, anchor=name.lower())
        if name not in found:
            shared = package != "accel" and name in entries("accel")
            kind = "autodata" if name.isupper() else "autoclass" if name[0].isupper() else "autofunction"
            text = f"## `{name}`\n\n{link}\n" if shared else TEMPLATE.format(name=name, kind=kind, package=package)
            lines.append(f"add to {page.relative_to(ROOT)}, with an example that runs:\n\n{text}")
        elif link not in found[name]:
            if f":: {package}.{name}\n" not in found[name]:
                lines.append(f"{page.relative_to(ROOT)}: the entry of {name} has no directive for {package}.{name}")
            if "```python\n" not in found[name]:
                lines.append(f"{page.relative_to(ROOT)}: the entry of {name} has no example")
    lines += [f"{page.relative_to(ROOT)}: {name} is no public name" for name in found if name not in names]
    return lines


if __name__ == "__main__":
    missing = [line for package in public_names() for line in problems(package)]
    print("\n".join(missing) or "every public name has its entry")
    sys.exit(1 if missing else 0)
