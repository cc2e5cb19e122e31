"""Run fault scenarios: python -m tests.faults [NAME …] [--thorough] [--most N] [--at CALL …] [--json FILE]."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

for name, value in (("POLARS_MAX_THREADS", "1"), ("OMP_NUM_THREADS", "1"), ("TOKENIZERS_PARALLELISM", "false")):
    os.environ.setdefault(name, value)
for folder in ("datasets", "tests/worlds"):
    sys.path.insert(0, str(Path(__file__).parents[2] / folder))

from tests.faults.harness import Harness, Report  # noqa: E402
from tests.faults.scenarios import SCENARIOS  # noqa: E402


def main() -> int:
    """Run the named scenarios, or all of them; return 1 if there were failures and 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"names of scenarios or parts of them: {', '.join(SCENARIOS)}")
    parser.add_argument("--exactly", action="store_true", help="match complete names only")
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    parser.add_argument("--thorough", action="store_true", help="try every error at every call")
    parser.add_argument("--most", type=int, default=0, help="number of points to try per scenario; 0 tries all")
    parser.add_argument("--at", type=int, nargs="*", default=[], help="try only these calls")
    parser.add_argument("--json", type=Path, help="write the reports to this JSON file")
    options = parser.parse_args()
    if options.list:
        print(*SCENARIOS, sep="\n")
        return 0
    chosen = [
        one
        for name, one in SCENARIOS.items()
        if not options.names or any(part == name if options.exactly else part in name for part in options.names)
    ]
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    reports: dict[str, Report] = {}
    for scenario in chosen:
        with tempfile.TemporaryDirectory(dir=memory, prefix="hgpo-faults-") as work:
            report = Harness(scenario, Path(work), most=options.most, thorough=options.thorough).run(options.at)
        reports[scenario.name] = report
        print_report(scenario.name, report)
    if options.json:
        options.json.write_text(json.dumps({name: vars(report) for name, report in reports.items()}, indent=1))
    return int(any(report.failures for report in reports.values()))


def print_report(name: str, report: Report) -> None:
    """Print a scenario's points by kind, and its failures."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.covered.items()))
    print(
        f"{name}: {report.points} points at {sum(report.calls.values())} calls; tried, with what a power cut leaves, "
        f"{sum(report.covered.values())} in {report.seconds:.1f} s ({kinds}; {report.missed} missed): "
        f"{len(report.failures)} failures",
        flush=True,
    )
    by_problem: dict[str, list[str]] = {}
    for where, problem in report.failures:
        by_problem.setdefault(problem, []).append(where)
    for problem, places in by_problem.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        print(f"  - {problem}\n      at: {places[0]}{more}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
