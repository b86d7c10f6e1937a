"""Whatever lies here needs a CUDA GPU: `pytest -m gpu` is all of it."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
