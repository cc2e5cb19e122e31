"""Benchmarks of research. They use modules of benchmarks/, which are scripts beside each other and no package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
