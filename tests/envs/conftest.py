"""The house of doors as a Gymnasium id."""

import doors_env
import pytest


@pytest.fixture(scope="session")
def doors_id() -> str:
    return doors_env.DOORS_ID
