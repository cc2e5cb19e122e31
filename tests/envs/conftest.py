"""A fixture with the Gymnasium id of the test environment Doors."""

import doors_env
import pytest


@pytest.fixture(scope="session")
def doors_id():
    return doors_env.DOORS_ID
