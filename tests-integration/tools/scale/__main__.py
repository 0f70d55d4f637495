"""The command `python -m scale`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

CURVES = Path(__file__).parent / "curves"
PICTURES = Path(__file__).parents[3] / "docs" / "pictures"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the curves, prints their numbers, and draws them."""
    parser = argparse.ArgumentParser(
        prog="python -m scale", description="Measures what grows with processes, files and requests, and draws it."
    )
    parser.add_argument("--only", metavar="PATTERN", default="", help="modules that this regular expression finds")
    parser.add_argument("--list", action="store_true", help="name the modules and measure nothing")
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds: does every module run?")
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=PICTURES, help="where to draw (docs/pictures)")
    asked = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch; processes that are started inherit it

    from scale.picture import draw

    modules = sorted(one.stem for one in CURVES.glob("*.py") if one.stem != "__init__")
    found = [one for one in modules if re.search(asked.only, one)]
    if not found:
        parser.error(f"--only {asked.only!r}: finds no module; --list names them")
    if asked.list:
        print("\n".join(found))
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    for module in found:
        for curve in import_module(f"scale.curves.{module}").measure(quick=asked.quick):
            print(curve.table())
            if curve.drawn:
                print(f"drawn as {draw(curve, asked.out)}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
