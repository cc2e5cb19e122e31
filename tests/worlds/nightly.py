"""The sizes of long tests: a sample by default, and everything with HGPO_TESTS=all (nightly)."""

import os

ALL = os.environ.get("HGPO_TESTS") == "all"


def sample_or_all(sample: int, everything: int) -> int:
    return everything if ALL else sample
