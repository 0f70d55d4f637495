"""Runs the scripts of docs/explanation/disagreement.md on two processes, and writes what they end with below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "disagreement.md"
CASE = re.compile(r"(<!-- report: \w+ -->\n```python\n)(.*?)(```\n\n```text\n)(.*?)(```\n)", re.DOTALL)
#: an error of accel's, to the end of what one process says of it; or a report of the watchdog
SAID = re.compile(r"^(?:\[rank0\]: )?(accel_\w+\.[\w.]+: .*|accel: (?!rank \d+ of).*)", re.MULTILINE)


def page(text: str, python: str = sys.executable) -> str:
    """Return the page with the reports of its scripts as they come now."""
    with ThreadPoolExecutor(1) as pool:
        found = iter(list(pool.map(partial(report, python), [match.group(2) for match in CASE.finditer(text)])))

    def drawn(match: re.Match[str]) -> str:
        now = next(found)
        kept = match.group(4) if without_times(match.group(4)) == without_times(now) else now
        return match.group(1) + match.group(2) + match.group(3) + kept + match.group(5)

    return CASE.sub(drawn, text)


def without_times(said: str) -> str:
    """The report without what differs from run to run."""
    return re.sub(r"\d+ s\b", "N s", said)


def report(python: str, script: str) -> str:
    """What the script ends with."""
    paths = os.pathsep.join(map(str, sorted(ROOT.glob("packages/*/src"))))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "train.py"
        file.write_text(script)
        command = [python, "-m", "accel", "launch", "--cpu", "--num_processes", "2", str(file)]
        environ = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)
    said = done.stderr.replace(f"{folder}/", "")
    begin = SAID.search(said)
    if begin is None:
        raise RuntimeError(f"exit code {done.returncode}, and nothing that accel said:\n{done.stderr}")
    lines = said[begin.start() :].splitlines()
    kept = [lines[0]]
    for line in lines[1:]:
        if line.startswith(("accel: rank", "[rank1]", "Traceback")) or not line.removeprefix("[rank0]: "):
            break
        kept.append(line)
    return "".join(f"{line.removeprefix('[rank0]: ')}\n" for line in kept)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
