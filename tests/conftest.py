"""Hypothesis profiles, and where recordings of the originals lie when they are there."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

for name, examples in (("default", 100), ("thorough", 1_000), ("exhaustive", 10_000)):
    settings.register_profile(name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SHARED = Path(os.environ.get("HGPO_SHARED", Path(__file__).parent.parent.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings (golden/) and official data (data/); tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip("no folder with recordings of the originals beside the checkout (HGPO_SHARED names another)")
    return SHARED
