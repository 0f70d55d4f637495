"""What ranks of these tests import, imported once for all of them."""

from importlib.util import find_spec

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Lets ranks find the models of Transformers imported, which takes each of them 2 s of processor."""
    if find_spec("transformers"):
        for model in ("bert", "gpt2", "llama", "mixtral", "qwen3"):
            config.addinivalue_line("world_preload", f"transformers.models.{model}.modeling_{model}")
