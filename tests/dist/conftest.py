"""Time limits of tests with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

# Seconds. It ends what hangs without its ranks being killed before; how long a test takes depends on the machine.
LIMIT = 1500


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT))
