"""Run a fuzzing campaign: python -m tests.fuzz [TARGET …] [--inputs N] [--seed S] [--keep]."""

import argparse
import os
import sys
from pathlib import Path

for name, value in (("POLARS_MAX_THREADS", "1"), ("OMP_NUM_THREADS", "1"), ("RUST_BACKTRACE", "0")):
    os.environ.setdefault(name, value)
for place in ("datasets", "tests/worlds"):
    sys.path.insert(0, str(Path(__file__).parents[2] / place))

from tests.fuzz.engine import Result, Target, file_name, fuzz  # noqa: E402
from tests.fuzz.targets import TARGETS  # noqa: E402

CORPUS = Path(__file__).with_name("corpus")


def main() -> int:
    """Run the named targets, or all of them; return 1 if there were findings and 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"names of targets or parts of them: {', '.join(TARGETS)}")
    parser.add_argument(
        "--inputs", type=int, default=10_000, help="total number of inputs, divided by the targets' weights"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add inputs with findings to the corpus")
    options = parser.parse_args()
    chosen = [one for name, one in TARGETS.items() if not options.names or any(part in name for part in options.names)]
    weights = sum(one.weight for one in chosen)
    results: dict[str, Result] = {}
    for target in chosen:
        result = fuzz(target, max(1, round(options.inputs * target.weight / weights)), options.seed)
        results[target.name] = result
        print_result(target, result)
        if options.keep:
            keep(target, result)
    print(f"{sum(one.inputs for one in results.values()):,} inputs in all")
    return int(any(result.findings for result in results.values()))


def print_result(target: Target, result: Result) -> None:
    """Print one line for the target, and one for each finding."""
    print(
        f"{target.name}: {result.inputs:,} inputs in {result.seconds:.0f} s, {dict(result.outcomes)}, "
        f"{result.kinds} kinds; "
        f"slowest {result.slowest_s * 1000:.0f} ms, peak {result.peak_mb:.0f} MB; {len(result.findings)} findings",
        flush=True,
    )
    for finding in result.findings.values():
        print(f"  - {finding.what} ({finding.times} times): {bytes.fromhex(finding.data)[:160]!r}", flush=True)


def keep(target: Target, result: Result) -> None:
    """Add the inputs of findings to the corpus."""
    folder = CORPUS / target.name.replace(" ", "-")
    for finding in result.findings.values():
        data = bytes.fromhex(finding.data)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file_name(data)).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
