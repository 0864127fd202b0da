"""The real engine, on the bundled checkpoint where a test names no other.

One engine at a time: each folder here has its own.
"""

import importlib.util
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
            if importlib.util.find_spec("vllm_omni") is None:
                item.add_marker(pytest.mark.skip(reason="vLLM-Omni is not installed"))
