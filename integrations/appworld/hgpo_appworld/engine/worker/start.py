"""Starts this package in AppWorld's interpreter: ``python …/worker/start.py SOCKET SETTINGS``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)
    import worker.parent  # type: ignore[import-not-found, unused-ignore]

    del sys.path[0]
    worker.parent.main(*sys.argv[1:])
