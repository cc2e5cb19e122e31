"""Run a benchmark: its options, rivals in turns, one table and one format of results.

    python -m benchmarks                  list the benchmarks
    python -m benchmarks NAME [OPTIONS]   run one; its result is stored in runs/benchmarks/, which git ignores
    python -m benchmarks NAME --keep      replace the kept result in benchmarks/results/

A benchmark is a module with a function `run`. The parameters of `run` are the options, and it yields a `Row` for every
measurement, each beside a rival or a lower bound of the same run. A `Part` is a result of its own, with rows or with
figures that are no rows.

Results have three entries: `rows`; `figures`, the other values that tables and pictures are made of; and `made`, the
machine, versions, commit and command.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import importlib
import inspect
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hgpo_envs.errors import InputError
from hgpo_envs.plugins import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
"""The kept results, which the repository contains."""
SCRATCH = ROOT / "runs" / "benchmarks"
"""The results of other runs, which git ignores."""
TYPES = {"int": int, "float": float, "str": str, "Path": Path}
"""The types of options by their names in annotations."""
PACKAGES = (
    "gymnasium",
    "numpy",
    "polars",
    "pyarrow",
    "jinja2",
    "xxhash",
    "torch",
    "transformers",
    "vllm",
)


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        what: What was measured.
        value: The result.
        unit: Its unit; "s" is shown as µs, ms or s, and a unit that ends with "/s" is better when it is larger.
        rival: Name and value of what does the same, or nothing.
        floor: Name and value of what no implementation can do without, or nothing.
        note: Further values, as text.
        case: What rows have in common, such as an environment or a size.
        shown: The page with this row: README.md and docs/measurements.md ("readme"), only the latter ("page"), or none.
    """

    what: str
    value: float
    unit: str = ""
    rival: tuple[str, float] | None = None
    floor: tuple[str, float] | None = None
    note: str = ""
    case: str = ""
    shown: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better than the rival, or more than the floor."""
        if self.floor:
            return self.value / self.floor[1]
        if self.rival is None or self.unit == "%":
            return None
        ours = self.value
        theirs = self.rival[1]
        return ours / theirs if self.unit.endswith("/s") else theirs / ours

    def shown_value(self) -> str:
        """Return the value with its unit."""
        return quantity(self.value, self.unit)

    def cells(self) -> tuple[str, str, str]:
        """Return what was measured, its value, and the rival or floor with the ratio and the note, for tables."""
        compared = ""
        other = self.rival or self.floor
        if other:
            name, value = other
            times = "" if self.ratio is None else f" ({number(self.ratio)} ×)"
            compared = f"{name} {quantity(value, self.unit)}{times}"
        comparison = "; ".join(filter(None, (compared, self.note)))
        return self.what, self.shown_value(), comparison


@dataclass(frozen=True)
class Part:
    """A result of its own.

    Attributes:
        rows: The measurements.
        figures: Other values, in JSON's types.
        suffix: What is added to the benchmark's name.
        picture: A chart of Altair, which is drawn beside the result.
    """

    rows: Sequence[Row] = ()
    figures: Any = None
    suffix: str = ""
    picture: Any = None


def number(value: float) -> str:
    """Return a number with two digits, or without a fraction from 10 on.

    >>> number(0.0351), number(6.65), number(18948.3)
    ('0.035', '6.7', '18,948')
    """
    return f"{value:,.0f}" if abs(value) >= 9.95 else f"{value:.2g}"


def quantity(value: float, unit: str) -> str:
    """Return a number with its unit.

    >>> quantity(3.1e-6, "s"), quantity(0.41, "%"), quantity(294, "MB")
    ('3.1 µs', '41%', '294 MB')
    """
    if unit == "%":
        return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"
    if unit == "s":
        for name, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
            if value * scale >= 1:
                return f"{number(value * scale)} {name}"
    return f"{number(value)} {unit}".strip()


# Measuring


def seconds(
    call: Callable[[], object], clock: Callable[[], float] = time.process_time
) -> float:
    """Return the seconds of a call; by default, CPU seconds of this process."""
    began = clock()
    call()
    return clock() - began


def in_turns(
    repeats: int, measures: Mapping[str, Callable[[], Any]]
) -> dict[str, list[Any]]:
    """Measure each of several things `repeats` times, in turns, so that other programs affect all of them alike."""
    values: dict[str, list[Any]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            values[name].append(measure())
    return values


def least(
    repeats: int, measures: Mapping[str, Callable[[], float]]
) -> dict[str, float]:
    """Return the minimum of each measure, in turns, after a warm-up."""
    return {
        name: min(values[1:])
        for name, values in in_turns(repeats + 1, measures).items()
    }


def in_new_process(work: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - the result of the work
    """Call a function in a new process, which imports the modules of this one again."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def memory_mb(kind: str) -> float:
    """Return the memory of this process in MB (Linux): now (`VmRSS`), at its peak (`VmHWM`), or unshared (`Private`).

    The peak that `resource.getrusage` returns would include that of the process that started this one.
    """
    process = Path("/proc/self")
    text = (process / "status").read_text() + (process / "smaps_rollup").read_text()
    # "Private" is the sum of several lines
    return sum(map(int, re.findall(rf"(?m)^{kind}\w*:\s*(\d+)", text))) / 1024


# Results


def result_path(name: str, *, keep: bool) -> Path:
    """Return where a result is stored: among the kept ones, or where git ignores it."""
    folder = RESULTS if keep else SCRATCH
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.json"


def store(name: str, figures: Any, rows: Iterable[Row] = (), *, keep: bool) -> str:  # noqa: ANN401 - any JSON value
    """Write a result and return a line that says where.

    Args:
        name: Name of the result.
        figures: Values that are no rows, in JSON's types; or None.
        rows: The measurements.
        keep: Whether to replace the kept result, from which the tables of the documentation are written.
    """
    result = {"rows": [dataclasses.asdict(row) | {"ratio": row.ratio} for row in rows]}
    if figures is not None:
        result["figures"] = figures
    result["made"] = made()
    path = result_path(name, keep=keep)
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")
    shown = path.relative_to(ROOT)
    if keep:
        return f"stored in {shown}; `python benchmarks/readme.py` updates the documentation"
    return f"stored in {shown}; the kept results in {(RESULTS / path.name).relative_to(ROOT)} are unchanged (--keep)"


def load_rows(name: str) -> list[Row]:
    """Return the rows of a kept result."""
    kept = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["rows"]
    for row in kept:
        del row["ratio"]  # which a row computes
    return [Row(**row) for row in kept]


def made() -> dict[str, Any]:
    """Return the conditions of a measurement. Of absolute paths, which are published, only the last part is kept."""
    arguments = [
        f".../{Path(argument).name}" if Path(argument).is_absolute() else argument
        for argument in sys.argv
    ]
    if Path(sys.argv[0]).name == "__main__.py":
        arguments[0] = "-m benchmarks"
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    cpu = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", cpu.read_text() if cpu.exists() else "")
    return {
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *arguments]),
        "commit": commit.stdout.strip(),
        "cpu": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {
            package: found
            for package in PACKAGES
            if (found := installed_version(package))
        },
    }


def print_rows(rows: Iterable[Row], title: str = "") -> None:
    """Print rows as a table."""
    table = Table("case", "measured", "value", "compared with", title=title)
    for row in rows:
        table.add_row(row.case, *row.cells())
    Console(width=None if sys.stdout.isatty() else 160).print(table)


# The command


def benchmarks() -> dict[str, str]:
    """Return the first line of every benchmark's docstring by its name."""
    found = {}
    # read, not imported, because some need torch
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text = path.read_text("utf-8")
        if "\ndef run(" in text:
            found[path.stem] = text.partition("\n")[0].strip('"')
    return found


def make_parser(
    description: str | None, name: str | None = None
) -> argparse.ArgumentParser:
    """Return a parser with the docstring of a benchmark as its help, and with the flag `--keep`."""
    parser = argparse.ArgumentParser(
        name,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_keep(parser)
    return parser


def add_keep(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--keep`, without which the kept results are not replaced."""
    parser.add_argument(
        "--keep",
        action="store_true",
        help="replace the kept results in benchmarks/results",
    )


def add_option(parser: argparse.ArgumentParser, parameter: inspect.Parameter) -> None:
    """Add the option of a parameter: of its type, and with several values if this is a tuple."""
    # not evaluated, because modules import annotations from the future
    hint: str = parameter.annotation
    options: dict[str, Any] = {"default": parameter.default}
    if hint == "bool":
        options["action"] = "store_true"
    elif hint.startswith("Literal"):
        options["choices"] = re.findall(r"['\"](\w+)['\"]", hint)
    else:
        options["type"] = TYPES[re.findall(r"\w+", hint.removeprefix("tuple"))[0]]
    if hint.startswith("tuple"):
        options |= {"nargs": "+", "action": "extend", "default": None}
    name = parameter.name.rstrip("_").replace("_", "-")
    parser.add_argument(
        f"--{name}",
        dest=parameter.name,
        help=f"default: {parameter.default}",
        **options,
    )


def main() -> None:
    """Run the benchmark that the command line names, or list all of them."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in benchmarks():
        for each, purpose in benchmarks().items():
            print(f"{each:20} {purpose}")
        sys.exit(
            f"\nexpected the name of a benchmark, received {name!r}" if name else 0
        )
    module = importlib.import_module(f"benchmarks.{name}")
    parser = make_parser(module.__doc__, f"python -m benchmarks {name}")
    for parameter in inspect.signature(module.run).parameters.values():
        add_option(parser, parameter)
    given = vars(parser.parse_args(sys.argv[2:]))
    keep = given.pop("keep")
    # An option of several values that is not given has the function's default.
    options = {
        option: tuple(value) if isinstance(value, list) else value
        for option, value in given.items()
        if value is not None
    }
    try:
        found = list(module.run(**options))
    except InputError as error:
        sys.exit(f"error: {error}")
    rows = [each for each in found if isinstance(each, Row)]
    parts = [each for each in found if isinstance(each, Part)]
    if rows:
        parts.insert(0, Part(rows))
    for part in parts:
        if part.rows:
            print_rows(part.rows, f"{name}{part.suffix}")
        print(store(f"{name}{part.suffix}", part.figures, part.rows, keep=keep))
        if part.picture is not None:
            part.picture.save(
                result_path(f"{name}{part.suffix}", keep=keep).with_suffix(".png"),
                scale_factor=2,
            )
