"""Run fault scenarios at every point: python -m tests.faults [NAME …] [--most N]."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

for name, value in (
    ("POLARS_MAX_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("TOKENIZERS_PARALLELISM", "false"),
):
    os.environ.setdefault(name, value)
for folder in ("datasets", "tests/worlds"):
    sys.path.insert(0, str(Path(__file__).parents[2] / folder))

from tests.faults import checkpoints, data, tables  # noqa: E402
from tests.faults.harness import Harness  # noqa: E402

SCENARIOS = {
    scenario.name: scenario
    for scenario in (*tables.SCENARIOS, *data.SCENARIOS, *checkpoints.SCENARIOS)
}


def main() -> int:
    """Run the named scenarios, or all of them; return 1 if there were failures and 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*SCENARIOS, []], help="scenarios; all by default"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=0,
        help="number of points to try per scenario; 0 tries all",
    )
    options = parser.parse_args()
    failures = 0
    for name in options.names or SCENARIOS:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(dir=memory, prefix="hgpo-faults-") as work:
            report = Harness(SCENARIOS[name], Path(work), options.most).run()
        print(
            f"{name}: {report.tried} faults, {len(report.failures)} problems",
            flush=True,
        )
        for problem, faults in report.failures.items():
            print(
                f"  - {problem}\n      {len(faults)} times, first: {faults[0]}",
                flush=True,
            )
        failures += len(report.failures)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
