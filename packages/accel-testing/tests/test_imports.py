"""The public names, and what an import of them costs."""

from __future__ import annotations

import subprocess
import sys

import accel_testing
import pytest


def test_importing_the_package_and_its_plugin_does_not_import_torch() -> None:
    code = "import sys, accel_testing, accel_testing.plugin; sys.exit('torch' in sys.modules)"
    path = str(accel_testing.__path__[0]) + "/.."
    subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"], check=True)


@pytest.mark.parametrize("name", accel_testing.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(accel_testing, name).__module__.startswith("accel_testing.")


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match="it has MakePool"):
        getattr(accel_testing, "Wrold")  # noqa: B009 # mypy knows that it is not there
