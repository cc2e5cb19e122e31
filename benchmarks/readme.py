"""Write the tables of measurements from the stored results, so that no number is typed by hand.

python benchmarks/readme.py     update the tables of README.md and of the pages in docs/
"""

from __future__ import annotations

import json
import sys
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hgpo_research.power import pooled_deviation, seeds_needed

sys.path.append(str(Path(__file__).parent))  # if another program runs this script


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = Path(__file__).parent / "results"
ESTIMATORS: Final = {"hgpo": "HGPO (K = 2)", "gigpo": "GiGPO", "grpo": "GRPO", "g2po": "G2PO"}
WORLDS: Final = {"alfworld": "ALFWorld", "webshop": "WebShop"}

SWITCHES: Final = (("gigpo:episode_weight=0", "gigpo"), ("grpo", "grpo:invalid_action_penalty=0.1"))
"""Estimators without and with the parts that the study finds harmful."""
SHRINKAGE: Final = tuple(
    ("shrinkage_gae:unit_scale=true", other) for other in ("gigpo:episode_weight=0", "gigpo", "grpo")
)
"""The estimator that correlates best on ALFWorld, and what it is compared with."""
HALF_RATE: Final = tuple(
    ("shrinkage_gae:unit_scale=true", f"switches/{other}") for _, other in (*SHRINKAGE, ("", SHRINKAGE[0][0]))
)
"""The same with half the learning rate, and what it is compared with: runs of another experiment."""

COMMANDS: Final = {
    "alfworld_fuzz": (
        "python benchmarks/alfworld_fuzz.py official.pack --games 300 --steps 70 --seed 11 --name official"
    ),
    "alfworld_experts": "python benchmarks/alfworld_experts.py json_2.1.1 --generated 1200",
}
"""The commands of results that were stored before commands were."""

MICRO, MILLI = 1e6, 1e3


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
    return [*_alfworld(), *_webshop(), *_appworld(), *_rollouts(), *_step_tables(), *_advantages(), *_learning()]


def _alfworld() -> list[Row]:
    found = figures("alfworld")
    against, memory = found["against"], found["memory"]
    fuzz, experts = figures("alfworld_fuzz"), figures("alfworld_experts")["results"]["json_2.1.1"]["expert"]["all"]
    lines = sum(part["lines"] for part in fuzz.values())
    differences = sum(part["differences"] for part in fuzz.values())
    return [
        Row(
            "ALFWorld: step of the bare engine with admissible commands",
            f"{against['native_step_s'] * MICRO:.1f} µs",
            f"original {against['original_step_s'] * MILLI:.0f} ms ({against['step_ratio']:,.0f} ×)",
            "alfworld",
            in_readme=True,
        ),
        _through_gymnasium("ALFWorld"),
        Row(
            "ALFWorld: memory of 1,000 environments",
            f"{memory['native_mb']:.0f} MB",
            f"original {memory['original_mb']:.0f} MB for one",
            "alfworld",
        ),
        Row(
            "ALFWorld: random walks compared with the original",
            f"{lines:,} lines",
            f"{differences} differences",
            "alfworld_fuzz",
            in_readme=True,
        ),
        Row(
            "ALFWorld: official games won by the expert within 50 steps",
            f"{experts['won']:,} of {experts['games']:,}",
            "",
            "alfworld_experts",
        ),
    ]


def _webshop() -> list[Row]:
    (found,) = figures("webshop_original").values()
    soak = figures("webshop_soak")["rows"]
    full = figures("webshop_catalogue")["catalogues"][-1]
    slowest = max(kind["p95"] for kind in full["query_ms"].values())
    return [
        Row(
            "WebShop: step of the bare engine with available actions, empty caches",
            f"{found['native, cold']['ms']['step']:.2f} ms",
            f"original {found['original']['ms']['step']:.0f} ms ({found['ratio']['cold']:.0f} ×)",
            "webshop_original",
            in_readme=True,
        ),
        Row(
            "WebShop: the same with cached products and searches",
            f"{found['native']['ms']['step']:.3f} ms",
            f"({found['ratio']['warm']:.0f} ×)",
            "webshop_original",
        ),
        _through_gymnasium("WebShop"),
        Row(
            f"WebShop, {full['products']:,} products: 95th percentile of search times",
            f"{slowest:.0f} ms",
            f"opens in {full['open_s'] * MILLI:.0f} ms, {full['private_mb']:.0f} MB per additional process",
            "webshop_catalogue",
            in_readme=True,
        ),
        Row(
            "WebShop: ten minutes in eight processes",
            f"{sum(row['episodes'] for row in soak):,} episodes",
            f"{sum(row['different'] for row in soak)} differ from a single process",
            "webshop_soak",
        ),
    ]


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


def _appworld() -> list[Row]:
    found = figures("appworld")
    most = max(found["worlds"], key=int)
    one = found["servers"]["1"]
    return [
        Row(
            f"AppWorld: memory of {most} worlds at the same time, with the process that forks them",
            f"{found['worlds'][most]['memory, MB']:,.0f} MB",
            f"original {one['memory, MB']:,.0f} MB for one server",
            "appworld",
        ),
        Row(
            "AppWorld: CPU of a start of a task",
            f"{found['worlds'][most]['start, ms']:,.0f} ms",
            f"new server {(one['server until it answers, ms'] + one['first start, ms']) / 1000:.1f} s",
            "appworld",
        ),
    ]


def _rollouts() -> list[Row]:
    tail, overhead = figures("rollouts_tail")["0.6"], figures("rollouts_overhead")["HGPO/ALFWorld-v0"]
    sampling = figures("sampling")
    own, generate = sampling["loops"]
    return [
        Row(
            "Rollouts: 128 environments, long-tailed response times",
            f"{tail['collector_s']:.0f} s",
            f"lockstep loop {tail['lockstep_s']:,.0f} s ({tail['ratio']:.1f} ×)",
            "rollouts_tail",
            in_readme=True,
        ),
        Row("Rollouts: overhead of the collector per step", f"{overhead['else']:.0f} µs", "", "rollouts_overhead"),
        Row(
            f"Sampling in process: {sampling['requests']} short responses, 1.1M parameters",
            f"{own['cpu_s']:.1f} s",
            f"`generate` of Transformers, no log-probabilities, {generate['cpu_s']:.1f} s ({generate['ratio']:.1f} ×)",
            "sampling",
        ),
    ]


def _step_tables() -> list[Row]:
    formats = figures("step_tables")["formats"]
    table, lines = (formats[f"numbers, texts, tokens: {name}"] for name in ("step table", "JSON lines"))
    return [
        Row(
            "Step table: row with texts and tokens",
            f"{table['bytes_per_row']:.0f} bytes",
            f"JSON lines {lines['bytes_per_row']:,.0f} ({lines['bytes_per_row'] / table['bytes_per_row']:.0f} ×)",
            "step_tables",
            in_readme=True,
        ),
    ]


def _advantages() -> list[Row]:
    found = figures("advantages")
    size = "128 × 16"
    own, theirs = found["sizes"][size], found["official"][size]
    official = theirs["HGPO K=2"] + theirs["step returns"]
    mine = own["HGPO K=2"]["with_advantages_s"]
    largest = found["chunks"][-1]
    return [
        Row(
            f"HGPO advantages (K = 2): {own['rows']:,} steps, including reading",
            f"{mine * MILLI:.0f} ms",
            f"official code {official:.0f} s ({official / mine:,.0f} ×)",
            "advantages",
            in_readme=True,
        ),
        Row(
            f"HGPO advantages (K = 2): {largest['rows']:,} steps",
            f"{largest['cpu_s']:.0f} s",
            f"{largest['peak_mb']:.0f} MB of memory",
            "advantages",
        ),
    ]


def _learning() -> list[Row]:
    lines = []
    for name, world in (("ALFWorld", "alfworld"), ("WebShop", "webshop")):
        if not (RESULTS / f"learning_{world}.json").exists():
            continue
        found = figures(f"learning_{world}")
        fresh, (*_, steps) = found["fresh"], found["ends"]["hgpo"]
        start, end = fresh.pop("warm-start")["mean"], fresh.pop("hgpo")["mean"]
        tasks = f"{fresh.pop('tasks')} fresh tasks"
        fresh.pop("differences", None)
        what = f"{name}: success on {tasks} before and after {steps:,.0f} training steps, 1.1M parameters, HGPO (K = 2)"
        others = ", ".join(f"{ESTIMATORS[estimator]} → {after['mean']:.0%}" for estimator, after in fresh.items())
        lines.append(Row(what, f"{start:.0%} → {end:.0%}", others, f"learning_{world}", in_readme=True))
    return lines


def short_table() -> str:
    """Return the README's table as Markdown."""
    head = ["| measurement | HGPO | comparison |", "|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(row[:3])} |" for row in rows() if row.in_readme)])


def table() -> str:
    """Return the table of all measurements as Markdown."""
    head = ["| measurement | HGPO | comparison | command |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(row[:3])} | {number(row.kept)} |" for row in rows())])


def command_of(name: str) -> str:
    """Return the command that refreshes a kept result, as it was typed."""
    kept = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    command: str = COMMANDS.get(name) or kept["made"]["command"]
    return f"{command} --keep"


def number(name: str) -> int:
    """Return the number of a result's command in the list below the table, from 1."""
    return list(dict.fromkeys(row.kept for row in rows())).index(name) + 1


def commands() -> str:
    """Return the list of commands as Markdown."""
    names = dict.fromkeys(row.kept for row in rows())
    return "\n".join(f"{place}. `{command_of(name)}`" for place, name in enumerate(names, 1))


def learning(name: str) -> str:
    """Return the table of success before and after training of one experiment as Markdown."""
    found = figures(f"learning_{name}")
    fresh, ends = found["fresh"], found["ends"]
    head = (
        f"| estimator | held out: change | fresh: after (before {percent(fresh['warm-start'])}) | fresh, gain |",
        "|---|---|---|---|",
    )
    lines = []
    for estimator in sorted(ends, key=[*ESTIMATORS, *ends].index):
        start, end, _ = ends[estimator]
        lift = fresh[estimator]["lift"]
        gained = f"{100 * lift['difference']:.1f} points ({100 * lift['low']:.1f} to {100 * lift['high']:.1f})"
        lines.append(f"| {_title(estimator)} | {start:.1%} → {end:.1%} | {percent(fresh[estimator])} | {gained} |")
    return "\n".join([*head, *lines])


def learning_differences(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Return the table of differences of success on fresh tasks between estimators as Markdown.

    Args:
        name: The experiment's name.
        pairs: The estimators that are compared: the first minus the second.
    """
    found = {(each["first"], each["second"]): each for each in figures(f"learning_{name}")["fresh"]["differences"]}
    lines = [
        "| difference on fresh tasks, in points | seen | of each seed | 95% interval by tasks | by seeds |",
        "|---|---|---|---|---|",
    ]
    for first, second in pairs:
        sign = 1 if (first, second) in found else -1
        each = found[(first, second)[::sign]]
        seen, *bounds = (100 * sign * each[key] for key in ("difference", "low", "high"))
        margin, seeds = 100 * each["margin_of_seeds"], ", ".join(f"{100 * sign * one:+.1f}" for one in each["seeds"])
        low, high = sorted(bounds)
        lines.append(
            f"| {_title(first)} − {_title(second)} | {seen:+.1f} | {seeds} | {low:+.1f} to {high:+.1f} | "
            f"{seen - margin:+.1f} to {seen + margin:+.1f} |"
        )
    return "\n".join(lines)


def learning_updates(experiments: Mapping[str, str]) -> str:
    """Return the table of how far the iterations of training moved the policy, as Markdown.

    Args:
        experiments: What is added to the estimators' titles, by the experiment's name.
    """
    lines = [
        "| estimator | approximate KL: first; later | clipped: first; later | largest A | entropy: first; last |",
        "|---|---|---|---|---|",
    ]
    for name, note in experiments.items():
        for estimator, found in figures(f"learning_{name}")["training"].items():
            first, later, last = found["first"], found["later"], found["last"]
            lines.append(
                f"| {_title(estimator)}{note} | {first['approx_kl']:.3f}; {later['approx_kl']:.4f} "
                f"| {first['clip_fraction']:.1%}; {later['clip_fraction']:.1%} | {later['largest_advantage']:.1f} "
                f"| {first['entropy']:.2f}; {last['entropy']:.2f} |"
            )
    return "\n".join(lines)


def _title(estimator: str) -> str:
    """Return an estimator's title; one with parameters is written as it is on the command line."""
    estimator = estimator.rpartition("/")[2]  # without the name of another experiment
    return ESTIMATORS.get(estimator, f"`{estimator}`")


def power(world: str) -> str:
    """Return the table of the seeds that would tell the estimators apart, as Markdown."""
    kept = figures(f"learning_{world}")
    found = {name: kept["fresh"][name] for name in ESTIMATORS if name in kept["fresh"]}
    seeds = len({row["seed"] for row in kept["curves"]})
    deviation, *bounds = pooled_deviation([each["std"] for each in found.values()], len(found) * (seeds - 1))
    sentence = (
        f"Between the seeds of one estimator, success on fresh tasks has a standard deviation of {100 * deviation:.1f} "
        f"points (95% interval {100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}; {len(found)} estimators, {seeds} seeds "
        f"each). At most {50 / kept['fresh']['tasks'] ** 0.5:.1f} points are the chance of playing "
        f"{kept['fresh']['tasks']} tasks once."
    )
    titles = ("estimators", "difference seen", "seeds each, if it is the true one", "at the bounds of the deviation")
    lines = [sentence, "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for first, second in combinations(found, 2):
        difference = found[first]["mean"] - found[second]["mean"]
        needed = [f"{seeds_needed(difference, value):,}" for value in (deviation, *bounds)]
        pair = f"{ESTIMATORS[first]} − {ESTIMATORS[second]}"
        lines.append(f"| {pair} | {100 * difference:+.1f} points | {needed[0]} | {needed[1]} to {needed[2]} |")
    return "\n".join(lines)


def viewer() -> str:
    """Return the table of the viewer's response times as Markdown."""
    lines = [
        "| steps | open | memory | page of tasks | group | step | HGPO, K = 4 | search | contexts |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in figures("viewer")["runs"]:
        parts = ("tasks", "group", "step", "estimate")
        times = [f"{run[part]['median_ms']:.0f} ({run[part]['p95_ms']:.0f})" for part in parts]
        seconds = [f"{run[part]['median_ms'] / 1000:.2f} s" for part in ("search", "levels")]
        cells = [f"{run['steps']:,}", f"{run['open_s']:.1f} s", f"{run['memory_mb']:.0f} MB", *times, *seconds]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def serve() -> str:
    """Return the table of served and local environments as Markdown."""
    lines = [
        "| | steps/s of 256 sessions | p50, p95 | with pauses | short sessions/s | memory | CPU | local steps/s |",
        "|---" * 8 + "|",
    ]
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
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rollout_correction() -> str:
    """Return the table of the gradient's bias with and without rollout correction as Markdown."""
    lines = [
        "| weights of the copy | mean gap of log-probabilities | no correction | token | sequence |",
        "|---|---|---|---|---|",
    ]
    for row in figures("rollout_correction")["rows"]:
        biases = " | ".join(f"{row[level]:.1%}" for level in ("none", "token", "sequence"))
        lines.append(f"| {row['gap']} | {row['logprob_gap']:.3f} | {biases} |")
    return "\n".join(lines)


def study_correlations() -> str:
    """Return the table of each estimator's correlation with the true advantage, by policy, as Markdown."""
    return "\n\n".join(_measured(world, cells, "correlation") for world, cells in _study("study").items())


def study_claims(name: str = "study") -> str:
    """Return the table of each hypothesis' differences and verdict, by policy, as Markdown."""
    tables, verdicts = [], figures(name)["verdicts"]
    for world, cells in _study(name).items():
        lines = _head(
            f"{WORLDS[world]}, difference", [*(f"{cell['policy']} {cell['variant']}" for cell in cells), "verdict"]
        )
        for place, verdict in enumerate(verdicts[world]):
            claims = [cell["claims"][place] for cell in cells]
            values = (
                "–" if each["low"] is None else f"{each['value']:+.3f} ({each['low']:+.3f} … {each['high']:+.3f})"
                for each in claims
            )
            title = f"{claims[0]['hypothesis']}: {claims[0]['first']} − {claims[0]['second']}"
            lines.append(f"| {title} | " + " | ".join(values) + f" | {verdict} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def study_models() -> str:
    """Return what is reported beside each iteration of the study's language models, and H8, as Markdown."""
    tables = []
    for world, cells in _study("study_models").items():
        lines = _head(WORLDS[world], [f"iteration {cell['variant']}" for cell in cells])
        rows = {
            "success": [f"{cell['success']:.0%}" for cell in cells],
            "steps": [f"{cell['steps']:,}" for cell in cells],
            "entropy, nats": [f"{cell['entropy']:.2f}" for cell in cells],
            "invalid actions": [f"{cell['invalid']:.0%}" for cell in cells],
            **{
                f"steps with a shared context, k = {k}": [f"{cell['shared'][k]:.0%}" for cell in cells]
                for k in cells[0]["shared"]
            },
            "true advantages: standard deviation": [f"{cell['truth_spread']:.2f}" for cell in cells],
            "their error, root mean square": [f"{cell['truth_error']:.2f}" for cell in cells],
        }
        for place, name in enumerate(cells[0]["last_steps"]):
            title = "true advantages" if name == "true" else name
            first = "share of the squares at the last steps of episodes: " if not place else "… "
            rows[f"{first}{title}"] = [f"{cell['last_steps'][name]:.0%}" for cell in cells]
        shares = {"all": "that the page and the action tell, where they are shared", "last": "… at last steps"}
        rows |= {
            f"{'mean square of true advantages ' if part == 'all' else ''}{title}": [
                f"{value:.0%}" + ("" if low is None else f" ({low:.0%} … {high:.0%})")
                for value, low, high in (cell["told"][part] for cell in cells)
            ]
            for part, title in shares.items()
        }
        rows["probability of responses that were not scored"] = [f"{cell['unscored']['all']:.0%}" for cell in cells]
        if world == "webshop":
            searches = [f"{cell['unscored']['searches']:.0%}" for cell in cells]
            rows["… where a valid query was given"] = searches
        rows["steps whose response was not scored"] = [f"{cell['without_probabilities']:.0%}" for cell in cells]
        history = figures("study_models")["history"][world]
        name = "HGPO (K = 4) − GiGPO's step part"
        rows[name] = [f"{each['value']:+.3f} ({each['low']:+.3f} … {each['high']:+.3f})" for each in history]
        changes = [each.get("change") for each in history]
        rows["H8: its change since the first iteration"] = [
            ""
            if each is None
            else f"{each['value']:+.3f} ({each['low']:+.3f} … {each['high']:+.3f}), {each['verdict']}"
            for each in changes
        ]
        lines += [f"| {name} | " + " | ".join(values) + " |" for name, values in rows.items()]
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def study_model_measures() -> str:
    """Return the tables of correlations and gradient cosines of the study's language models as Markdown."""
    return "\n\n".join(
        _measured(world, cells, measure)
        for world, cells in _study("study_models").items()
        for measure in ("correlation", "model_gradient", "model_gradient_within")
    )


def _measured(world: str, cells: list[dict[str, Any]], measure: str) -> str:
    lines = _head(f"{WORLDS[world]}, {measure.replace('_', ' ')}", [f"{c['policy']} {c['variant']}" for c in cells])
    lines.append("| *success* | " + " | ".join(f"*{cell['success']:.0%}*" for cell in cells) + " |")
    for name in cells[0]["estimators"]:
        values = (_interval(cell["estimators"][name][measure]) for cell in cells)
        lines.append(f"| {name} | " + " | ".join(values) + " |")
    permuted = [cell["estimators"]["hgpo:history_length=2"][measure] for cell in cells]
    ranges = (f"{each['chance_low']:.2f} – {each['chance_high']:.2f}" for each in permuted)
    lines.append("| *chance: HGPO (K = 2), permuted in its groups* | " + " | ".join(ranges) + " |")
    return "\n".join(lines)


def _interval(found: dict[str, float | None]) -> str:
    if found["value"] is None:
        return "–"
    return f"{found['value']:.2f}" + ("" if found["low"] is None else f" ({found['low']:.2f} – {found['high']:.2f})")


def _study(name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the cells of a study by environment."""
    worlds: dict[str, list[dict[str, Any]]] = {}
    for cell in figures(name)["cells"]:
        worlds.setdefault(cell["world"], []).append(cell)
    return worlds


def _head(first: str, names: list[str]) -> list[str]:
    return [f"| {first} | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]


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


def truth_speed() -> str:
    """Return the table of the speed of truths as Markdown."""
    heads = (
        "policy `softmax`, memory 2",
        "mean reward",
        "10,000 truths",
        "error of A",
        "known",
        "separate rollouts, at that error",
        "ratio",
        "`hgpo truth` of n steps: 1; 2 processes",
    )
    lines = [f"| {' | '.join(heads)} |", "|---|---|---:|---|---|---:|---:|---|"]
    for name, found in figures("truth").items():
        env, _, options = name.partition(" ")
        world = WORLDS[env.removeprefix("HGPO/").removesuffix("-v0").lower()]
        values = (
            f"{world}, {options.replace('=', ' ')}",
            f"{found['mean reward']:.2f}",
            f"{found['10k truths, s']:.0f} s",
            f"{found['error']:.3f}",
            f"{found['known']:.2f}",
            f"{found['at that error, s']:,.0f} s",
            f"{found['ratio']:.0f}",
            f"{found['command, 1']:.1f} s; {found['command, 2']:.1f} s (n = {found['truths']:,})",
        )
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def sharded_learner(figures: dict[str, Any]) -> str:
    """Return the differences of the sharded learner as Markdown."""
    columns = {"gradient": "first gradient", "weight": "weights after 10 steps", "actor/loss": "last loss"}
    lines = [f"| trained | processes | {' | '.join(columns.values())} |", "|---" * 5 + "|"]
    for row in figures["cases"]:
        values = (f"{row[name]:.1e}" if name in row else "" for name in columns)
        lines.append(f"| {row['case']} | {row['processes']} | {' | '.join(values)} |")
    return "\n".join(lines)


PAGES: Final[dict[str, dict[str, Callable[[], str]]]] = {
    "README.md": {"figures": short_table},
    "docs/measurements.md": {"figures": table, "commands": commands},
    "integrations/appworld/README.md": {"figures": appworld_costs},
    "docs/training.md": {
        "alfworld": partial(learning, "alfworld"),
        "webshop": partial(learning, "webshop"),
        "power": partial(power, "alfworld"),
        "switches": partial(learning, "alfworld_switches"),
        "differences of switches": partial(learning_differences, "alfworld_switches", SWITCHES),
        "differences of shrinkage_gae": partial(learning_differences, "alfworld_switches", SHRINKAGE),
        "switches on WebShop": partial(learning, "webshop_switches"),
        "differences of switches on WebShop": partial(learning_differences, "webshop_switches", SWITCHES),
        "differences of shrinkage_gae on WebShop": partial(learning_differences, "webshop_switches", SHRINKAGE),
        "updates": partial(
            learning_updates, {"alfworld_switches": "", "alfworld_half_rate": ", half the learning rate"}
        ),
        "differences of half the rate": partial(learning_differences, "alfworld_half_rate", HALF_RATE),
        "rollout correction": rollout_correction,
    },
    "docs/scaling.md": {
        "sharded learner": lambda: sharded_learner(figures("sharded_learner")),
    },
    "research/docs/truth.md": {"speed": truth_speed},
    "docs/viewer.md": {"speed": viewer},
    "integrations/openenv/README.md": {"serve": serve},
    "research/docs/study.md": {
        "correlations": study_correlations,
        "claims": study_claims,
        "models": study_models,
        "measures of models": study_model_measures,
        "claims of models": partial(study_claims, "study_models"),
    },
}
"""The tables of each page, each between two comments with its name."""


def rewrite(name: str) -> str:
    """Return a page with updated tables."""
    page = (ROOT / name).read_text("utf-8")
    for title, make in PAGES[name].items():
        begin, end = f"<!-- {title}: written by python benchmarks/readme.py -->", f"<!-- end of {title} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n\n{make()}\n\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / name).write_text(rewrite(name), "utf-8")
