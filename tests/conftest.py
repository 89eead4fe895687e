"""What all tests share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A busy machine, or the first use of hypothesis in a fresh checkout, is no fault of a test.
settings.register_profile("pipedsl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pipedsl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the expected output of the golden tests anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
