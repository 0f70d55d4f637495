"""What ranks of these tests import, imported once for all of them."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Lets ranks find the compiler of torch imported.

    Not the models of Transformers: they import the real accelerate, in whose place other tests put accel.
    """
    config.addinivalue_line("world_preload", "torch._dynamo")
    config.addinivalue_line("world_preload", "torch._functorch.aot_autograd")
