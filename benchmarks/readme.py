"""Write the tables of measurements from the stored results, so that no number is typed by hand.

python benchmarks/readme.py     update the tables of README.md and of the pages in docs/
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = Path(__file__).parent / "results"
ESTIMATORS: Final = {"hgpo": "HGPO (K = 2)", "gigpo": "GiGPO", "grpo": "GRPO", "g2po": "G2PO"}
OTHER_SEEDS: Final = ", other seeds"
"""What is added to the name of an estimator that is run again with other seeds: an A/A test."""
WORLDS: Final = {"alfworld": "ALFWorld", "webshop": "WebShop"}

COMMANDS: Final = {
    "alfworld_fuzz": (
        "python benchmarks/alfworld_fuzz.py official.pack --games 300 --steps 70 --seed 11 --name official"
    ),
    "alfworld_experts": "python benchmarks/alfworld_experts.py json_2.1.1 --generated 1200",
    "learning_webshop": (
        "python benchmarks/learning.py --world webshop --set environment_steps=12000 --set evaluation.every=5"
    ),
    "appworld": "PYTHONPATH=benchmarks python integrations/appworld/benchmarks/appworld.py --data .../root",
}
"""The commands of results that were stored without them, or by scripts that have moved."""

MICRO, MILLI = 1e6, 1e3
SLOTS: Final = 256


class Row(NamedTuple):
    """A row of the tables of measurements.

    Attributes:
        subject: What was measured.
        result: The result.
        comparison: What it is compared with; may be empty.
        kept: Name of the kept result.
        in_readme: Whether README.md shows the row too.
    """

    subject: str
    result: str
    comparison: str
    kept: str
    in_readme: bool = False


def figures(name: str) -> Any:  # noqa: ANN401 - the type depends on the benchmark
    """Return the stored results of a benchmark."""
    kept = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return kept.get("figures", kept)


def rows() -> list[Row]:
    """Return all rows."""
    parts = (_alfworld, _webshop, _appworld, _rollouts, _step_tables, _advantages, _update, _learning)
    return [row for part in parts for row in part()]


def _alfworld() -> Iterator[Row]:
    found = figures("alfworld")
    against, memory = found["against"], found["memory"]
    fuzz, experts = figures("alfworld_fuzz"), figures("alfworld_experts")["results"]["json_2.1.1"]["expert"]["all"]
    lines = sum(part["lines"] for part in fuzz.values())
    differences = sum(part["differences"] for part in fuzz.values())
    yield Row(
        "ALFWorld: step of the bare engine with admissible commands",
        f"{against['native_step_s'] * MICRO:.1f} µs",
        f"original {against['original_step_s'] * MILLI:.0f} ms ({against['step_ratio']:,.0f} ×)",
        "alfworld",
        in_readme=True,
    )
    yield _through_gymnasium("ALFWorld")
    yield Row(
        "ALFWorld: memory of 1,000 environments",
        f"{memory['native_mb']:.0f} MB",
        f"original {memory['original_mb']:.0f} MB for one",
        "alfworld",
    )
    yield Row(
        "ALFWorld: random walks compared with the original",
        f"{lines:,} lines",
        f"{differences} differences",
        "alfworld_fuzz",
        in_readme=True,
    )
    yield Row(
        "ALFWorld: official games won by the expert within 50 steps",
        f"{experts['won']:,} of {experts['games']:,}",
        "",
        "alfworld_experts",
    )


def _webshop() -> Iterator[Row]:
    (found,) = figures("webshop_original").values()
    soak = figures("webshop_soak")["rows"]
    full = figures("webshop_catalogue")["catalogues"][-1]
    slowest = max(kind["p95"] for kind in full["query_ms"].values())
    yield Row(
        "WebShop: step of the bare engine with available actions, empty caches",
        f"{found['native, cold']['ms']['step']:.2f} ms",
        f"original {found['original']['ms']['step']:.0f} ms ({found['ratio']['cold']:.0f} ×)",
        "webshop_original",
        in_readme=True,
    )
    yield Row(
        "WebShop: the same with cached products and searches",
        f"{found['native']['ms']['step']:.3f} ms",
        f"({found['ratio']['warm']:.0f} ×)",
        "webshop_original",
    )
    yield _through_gymnasium("WebShop")
    yield Row(
        f"WebShop, {full['products']:,} products: 95th percentile of search times",
        f"{slowest:.0f} ms",
        f"opens in {full['open_s'] * MILLI:.0f} ms, {full['private_mb']:.0f} MB per additional process",
        "webshop_catalogue",
        in_readme=True,
    )
    yield Row(
        "WebShop: ten minutes in eight processes",
        f"{sum(row['episodes'] for row in soak):,} episodes",
        f"{sum(row['different'] for row in soak)} differ from a single process",
        "webshop_soak",
    )


def _through_gymnasium(benchmark: str) -> Row:
    """Return the row for a step through Gymnasium, compared with the bare engine in the same run."""
    found = figures("environments")[f"HGPO/{benchmark}-v0"]
    return Row(
        f"{benchmark}: step through `gymnasium.make` with prompt, info and history hashes",
        f"{found['gym.make']:.0f} µs; empty caches {found['gym.make, first']:.0f} µs",
        f"bare engine in the same run {found['engine']:.0f} µs; empty caches {found['engine, first']:.0f} µs",
        "environments",
        in_readme=True,
    )


def _appworld() -> Iterator[Row]:
    found = figures("appworld")
    most = max(found["worlds"], key=int)
    one = found["servers"]["1"]
    yield Row(
        f"AppWorld: memory of {most} worlds at the same time, with the process that forks them",
        f"{found['worlds'][most]['memory, MB']:,.0f} MB",
        f"original {one['memory, MB']:,.0f} MB for one server",
        "appworld",
    )
    yield Row(
        "AppWorld: CPU of a start of a task",
        f"{found['worlds'][most]['start, ms']:,.0f} ms",
        f"new server {(one['server until it answers, ms'] + one['first start, ms']) / 1000:.1f} s",
        "appworld",
    )


def _rollouts() -> Iterator[Row]:
    tail, steps = figures("rollouts_tail")["0.6"], figures("rollouts_steps")["HGPO/ALFWorld-v0"]
    alone, workers, memory = steps["environment_and_policy"], figures("rollouts_workers"), figures("rollouts_memory")
    served = {row["loop"]: row for row in figures("served")["loops"] if row["concurrency"] == SLOTS}
    sampling = figures("sampling")
    own, generate = sampling["loops"]
    yield Row(
        "Rollouts: 128 environments, long-tailed response times",
        f"{tail['collector_s']:.0f} s",
        f"lockstep loop {tail['lockstep_s']:,.0f} s ({tail['ratio']:.1f} ×)",
        "rollouts_tail",
        in_readme=True,
    )
    yield Row(
        "Rollouts: ALFWorld, random policy, 256 slots, a step collected and written",
        f"{steps['collected_and_written']['min_us']:.0f} µs",
        f"environment and policy alone {alone['min_us']:.0f} µs ({steps['collected_and_written']['ratio']:.1f} ×)",
        "rollouts_steps",
        in_readme=True,
    )
    yield Row(
        "Rollouts: the same with two worker processes, wall time",
        f"{workers['two_workers']['min_us']:.0f} µs",
        f"in this process {workers['in_process']['min_us']:.0f} µs",
        "rollouts_workers",
    )
    yield Row(f"Rollouts: peak memory of {memory['steps']:,} steps", f"{memory['peak_mb']} MB", "", "rollouts_memory")
    yield Row(
        f"Rollouts: a reply of an OpenAI-compatible server, {SLOTS} at a time",
        f"{served['policy']['cpu_ms']:.2f} ms of CPU",
        f"aiohttp alone {served['aiohttp']['cpu_ms']:.2f} ms; "
        f"{served['policy']['replies_per_s']:,.0f} replies a second",
        "served",
        in_readme=True,
    )
    yield Row(
        f"Sampling in process: {sampling['requests']} short responses, 1.1M parameters",
        f"{own['cpu_s']:.1f} s",
        f"`generate` of Transformers, no log-probabilities, {generate['cpu_s']:.1f} s ({generate['ratio']:.1f} ×)",
        "sampling",
    )


def _step_tables() -> Iterator[Row]:
    formats = figures("step_tables")["formats"]
    table, lines = (formats[f"numbers, texts, tokens: {name}"] for name in ("step table", "JSON lines"))
    yield Row(
        "Step table: row with texts and tokens",
        f"{table['bytes_per_row']:.0f} bytes",
        f"JSON lines {lines['bytes_per_row']:,.0f} ({lines['bytes_per_row'] / table['bytes_per_row']:.0f} ×)",
        "step_tables",
        in_readme=True,
    )


def _advantages() -> Iterator[Row]:
    found = figures("advantages")
    size = "128 × 16"
    own, theirs = found["sizes"][size], found["official"][size]
    official = theirs["HGPO K=2"] + theirs["step returns"]
    mine = own["HGPO K=2"]["with_advantages_s"]
    largest = found["chunks"][-1]
    yield Row(
        f"HGPO advantages (K = 2): {own['rows']:,} steps, including reading",
        f"{mine * MILLI:.0f} ms",
        f"official code {official:.0f} s ({official / mine:,.0f} ×)",
        "advantages",
        in_readme=True,
    )
    yield Row(
        f"HGPO advantages (K = 2): {largest['rows']:,} steps",
        f"{largest['cpu_s']:.0f} s",
        f"{largest['peak_mb']:.0f} MB of memory",
        "advantages",
    )


def _update() -> Iterator[Row]:
    variants = figures("update")["variants"]
    default = variants["packed, recomputed, 1,024 logits"]["tokens/s"]
    compiled = variants["the same, compiled"]["tokens/s"]
    rival = variants["TRL's loss"]["update alone"]
    yield Row(
        "Policy update of 1.5B on an H100 with both scoring passes, tokens a second",
        f"{default:,}; {compiled:,} with `model.compile`",
        f"TRL's loss and gradient without them {rival:,}",
        "update",
        in_readme=True,
    )


def _learning() -> Iterator[Row]:
    for name, world in (("ALFWorld", "alfworld"), ("WebShop", "webshop")):
        if not (RESULTS / f"learning_{world}.json").exists():
            continue
        found = figures(f"learning_{world}")
        fresh, (*_, steps) = found["fresh"], found["ends"]["hgpo"]
        start, end = fresh.pop("warm-start")["mean"], fresh.pop("hgpo")["mean"]
        tasks = f"{fresh.pop('tasks')} fresh tasks"
        fresh.pop("differences", None)
        what = f"{name}: success on {tasks} before and after {steps:,.0f} training steps, 1.1M parameters, HGPO (K = 2)"
        others = ", ".join(f"{title_of(estimator)} → {after['mean']:.0%}" for estimator, after in fresh.items())
        yield Row(what, f"{start:.0%} → {end:.0%}", others, f"learning_{world}", in_readme=True)


def markdown(head: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    Args:
        head: Its first line.
        rows: The cells of the other lines.
    """
    rule = "|---" * (head.count("|") - 1) + "|"
    return "\n".join([head, rule, *(f"| {' | '.join(cells)} |" for cells in rows)])


def short_table() -> str:
    """Return the README's table as Markdown."""
    return markdown("| measurement | HGPO | comparison |", (row[:3] for row in rows() if row.in_readme))


def table() -> str:
    """Return the table of all measurements as Markdown."""
    numbered = ((*row[:3], str(names_of_results().index(row.kept) + 1)) for row in rows())
    return markdown("| measurement | HGPO | comparison | command |", numbered)


def command_of(name: str) -> str:
    """Return the command that refreshes a kept result, as it was typed."""
    kept = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    command: str = COMMANDS.get(name) or kept["made"]["command"]
    return f"{command.removesuffix(' --keep')} --keep"


def names_of_results() -> list[str]:
    """Return the names of the results in the table, in the order of the list of commands below it."""
    return list(dict.fromkeys(row.kept for row in rows()))


def commands() -> str:
    """Return the list of commands as Markdown."""
    return "\n".join(f"{place}. `{command_of(name)}`" for place, name in enumerate(names_of_results(), 1))


def learning(name: str) -> str:
    """Return the table of success before and after training of one experiment as Markdown."""
    found = figures(f"learning_{name}")
    fresh, ends = found["fresh"], found["ends"]
    head = f"| estimator | held out: change | fresh: after (before {percent(fresh['warm-start'])}) | fresh, gain |"
    lines = []
    for estimator in sorted(ends, key=[*ESTIMATORS, *ends].index):
        start, end, _ = ends[estimator]
        lift = fresh[estimator]["lift"]
        gained = f"{100 * lift['difference']:.1f} points ({100 * lift['low']:.1f} to {100 * lift['high']:.1f})"
        lines.append((title_of(estimator), f"{start:.1%} → {end:.1%}", percent(fresh[estimator]), gained))
    return markdown(head, lines)


def learning_differences(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Return the table of differences of success on fresh tasks between estimators as Markdown.

    Args:
        name: The experiment's name.
        pairs: The estimators that are compared: the first minus the second.
    """
    found = {(each["first"], each["second"]): each for each in figures(f"learning_{name}")["fresh"]["differences"]}
    lines = []
    for first, second in pairs:
        sign = 1 if (first, second) in found else -1
        each = found[(first, second)[::sign]]
        seen, margin = 100 * sign * each["difference"], 100 * each["margin_of_seeds"]
        seeds = ", ".join(f"{100 * sign * one:+.1f}" for one in each["seeds"])
        interval = f"{seen - margin:+.1f} to {seen + margin:+.1f}"
        lines.append((f"{title_of(first)} − {title_of(second)}", f"{seen:+.1f}", seeds, interval))
    return markdown("| difference on fresh tasks, in points | seen | of each seed | 95% interval by seeds |", lines)


def prompt_styles() -> str:
    """Return the comparison of prompts with a memory and conversations as Markdown: HGPO with the same three seeds."""
    lines = []
    for world, title in WORLDS.items():
        fresh = {style: figures(f"learning_{world}_{style}")["fresh"] for style in ("memory", "chat")}
        gained = [f"{percent(fresh[style]['warm-start'])} → {percent(fresh[style]['hgpo'])}" for style in fresh]
        for style, first, second in (("chat", "hgpo", "memory/hgpo"), ("memory", "hgpo", f"hgpo{OTHER_SEEDS}")):
            found = {frozenset((each["first"], each["second"])): each for each in fresh[style]["differences"]}
            each = found[frozenset((first, second))]
            sign = 1 if each["first"] == first else -1
            gained.append(f"{100 * sign * each['difference']:+.1f} (± {100 * each['margin_of_seeds']:.1f})")
        lines.append((title, *gained))
    return markdown("| fresh tasks | memory | chat | chat − memory | A/A, memory |", lines)


def title_of(estimator: str) -> str:
    """Return an estimator's title; one with parameters is written as it is on the command line."""
    name = estimator.removesuffix(OTHER_SEEDS)
    return ESTIMATORS.get(name, f"`{name}`") + estimator.removeprefix(name)


def viewer() -> str:
    """Return the table of the CPU time of the viewer's answers as Markdown."""
    titles = ("open", "memory", "tasks", "rollouts", "group", "transcript", "HGPO", "compare", "search", "contexts")
    lines = []
    for run in figures("viewer")["runs"]:
        parts = ("tasks", "rollouts", "group", "transcript", "estimate")
        times = [f"{run[part]['cpu_median_ms']:.0f} ({run[part]['cpu_p95_ms']:.0f})" for part in parts]
        seconds = [f"{run[part]['cpu_median_ms'] / 1000:.2f} s" for part in ("compare", "search", "levels")]
        lines.append(
            (f"{run['steps']:,}", f"{run['open_cpu_s']:.1f} s", f"{run['memory_mb']:.0f} MB", *times, *seconds)
        )
    return markdown(f"| steps | {' | '.join(titles)} |", lines)


def serve() -> str:
    """Return the table of served and local environments as Markdown."""
    head = "| | steps/s of 256 sessions | p50, p95 | with pauses | short sessions/s | memory | CPU | local steps/s |"
    lines = []
    for name, found in figures("serve").items():
        fast, paced = found["as_fast_as_possible"], found["paced"]
        cells = [
            name,
            f"{fast['steps_per_s']:,.0f}",
            f"{fast['p50_ms']:.0f}, {fast['p95_ms']:.0f} ms",
            f"{paced['p50_ms']:.1f}, {paced['p95_ms']:.1f} ms",
            f"{found['short_sessions_per_s']:,.0f}",
            f"{found['memory_kb_per_session']:.0f} KB",
            f"{found['server_cpu_us_per_step']:.0f}, {found['local_cpu_us_per_step']:.0f} µs",
            f"{found['local_steps_per_s']:,.0f}",
        ]
        lines.append(cells)
    return markdown(head, lines)


def rollout_correction() -> str:
    """Return the table of the gradient's bias with and without rollout correction as Markdown."""
    head = "| weights of the copy | mean gap of log-probabilities | no correction | token | sequence |"
    found, levels = figures("rollout_correction")["rows"], ("none", "token", "sequence")
    return markdown(
        head, ((row["gap"], f"{row['logprob_gap']:.3f}", *(f"{row[each]:.1%}" for each in levels)) for row in found)
    )


def percent(measured: dict[str, float]) -> str:
    """Format a fraction with its interval."""
    return f"{measured['mean']:.1%} ({measured['low']:.1%} to {measured['high']:.1%})"


def appworld_costs() -> str:
    """Return the table of integrations/appworld/README.md."""
    found = figures("appworld")
    columns = {_counted(n, "world"): one for n, one in found["worlds"].items()}
    columns |= {_counted(n, "server") + " of the original": one for n, one in found["servers"].items()}
    names = dict.fromkeys(name for one in columns.values() for name in one)
    lines = [f"| | {' | '.join(columns)} |", f"|---{'|---:' * len(columns)}|"]
    for name in names:
        values = (f"{one[name]:,.0f}" if name in one else "" for one in columns.values())
        lines.append(f"| {name} | {' | '.join(values)} |")
    return "\n".join(lines)


def _counted(number: str, kind: str) -> str:
    return f"{number} {kind}{'' if number == '1' else 's'}"


PAIRS: Final = (("hgpo", "grpo"), ("grpo", f"grpo{OTHER_SEEDS}"), ("hgpo", f"grpo{OTHER_SEEDS}"))

PAGES: Final[dict[str, dict[str, Callable[[], str]]]] = {
    "README.md": {"figures": short_table},
    "docs/measurements.md": {"figures": table, "commands": commands},
    "integrations/appworld/README.md": {"figures": appworld_costs},
    "docs/training.md": {
        "alfworld": partial(learning, "alfworld"),
        "webshop": partial(learning, "webshop"),
        "alfworld differences": partial(learning_differences, "alfworld", PAIRS),
        "webshop differences": partial(learning_differences, "webshop", PAIRS),
        "prompt styles": prompt_styles,
        "rollout correction": rollout_correction,
    },
    "docs/viewer.md": {"speed": viewer},
    "integrations/openenv/README.md": {"serve": serve},
}
"""The tables of each page, each between two comments with its name."""


def rewrite(
    name: str,
    pages: Mapping[str, Mapping[str, Callable[[], str]]] = PAGES,
    command: str = "python benchmarks/readme.py",
) -> str:
    """Return a page with updated tables.

    Args:
        name: The page.
        pages: The tables of each page.
        command: The command that its comments name.
    """
    page = (ROOT / name).read_text("utf-8")
    for title, make in pages[name].items():
        begin, end = f"<!-- {title}: written by {command} -->", f"<!-- end of {title} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n\n{make()}\n\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / name).write_text(rewrite(name), "utf-8")
