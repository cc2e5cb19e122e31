"""Write the tables of measurements from the stored results, so that no number is typed by hand.

python benchmarks/readme.py     update the tables of README.md and of the pages in docs/
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.runner import RESULTS, ROOT, load_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from benchmarks.runner import Row

ESTIMATORS: Final = {
    "hgpo": "HGPO (K = 2)",
    "gigpo": "GiGPO",
    "grpo": "GRPO",
    "g2po": "G2PO",
}
OTHER_SEEDS: Final = ", other seeds"
"""What is added to the name of an estimator that is run again with other seeds: an A/A test."""
WORLDS: Final = {"alfworld": "ALFWorld", "webshop": "WebShop"}
MEASURED: Final = (
    "alfworld",
    "environments",
    "alfworld_fuzz_official",
    "alfworld_fuzz_bundled",
    "alfworld_experts",
    "webshop_original",
    "webshop_catalogue",
    "webshop_soak",
    "appworld",
    "rollouts_tail",
    "rollouts_steps",
    "rollouts_workers",
    "rollouts_memory",
    "served",
    "sampling",
    "step_tables",
    "advantages",
    "update",
    "learning_alfworld",
    "learning_webshop",
)
"""The kept results of the tables of measurements, in their order."""


def kept(name: str) -> dict[str, Any]:
    """Return a kept result."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def figures(name: str) -> Any:  # noqa: ANN401 - the type depends on the benchmark
    """Return the values of a kept result that are no rows."""
    return kept(name)["figures"]


def markdown(head: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    Args:
        head: Its first line.
        rows: The cells of the other lines.
    """
    rule = "|---" * (head.count("|") - 1) + "|"
    return "\n".join([head, rule, *(f"| {' | '.join(cells)} |" for cells in rows)])


def measurements() -> Iterator[tuple[Row, str]]:
    """Yield the rows of all measurements, each with the number of its command."""
    for place, name in enumerate(MEASURED, 1):
        for row in load_rows(name):
            yield row, str(place)


def short_table() -> str:
    """Return the README's table as Markdown."""
    cells = [row.cells() for row, _ in measurements() if row.shown == "readme"]
    return markdown("| measurement | HGPO | comparison |", cells)


def table() -> str:
    """Return the table of all measurements as Markdown."""
    cells = [(*row.cells(), place) for row, place in measurements() if row.shown]
    return markdown("| measurement | HGPO | comparison | command |", cells)


def commands() -> str:
    """Return the list of the commands that refresh the kept results, as they were typed."""
    lines = []
    for place, name in enumerate(MEASURED, 1):
        command = kept(name)["made"]["command"].removesuffix(" --keep")
        lines.append(f"{place}. `{command} --keep`")
    return "\n".join(lines)


def learning(name: str) -> str:
    """Return the table of success before and after training of one experiment as Markdown."""
    found = figures(f"learning_{name}")
    fresh = found["fresh"]
    ends = found["ends"]
    head = f"| estimator | held out: change | fresh: after (before {percent(fresh['warm-start'])}) | fresh, gain |"
    lines = []
    for estimator in sorted(ends, key=[*ESTIMATORS, *ends].index):
        start, end, _ = ends[estimator]
        change = f"{start:.1%} → {end:.1%}"
        after = fresh[estimator]
        gain, low, high = (
            100 * after["lift"][name] for name in ("difference", "low", "high")
        )
        gained = f"{gain:.1f} points ({low:.1f} to {high:.1f})"
        lines.append((title_of(estimator), change, percent(after), gained))
    return markdown(head, lines)


def difference(name: str, first: str, second: str) -> tuple[float, float, list[float]]:
    """Return how much more fresh tasks the first estimator of an experiment solves than the second, in points.

    Returns:
        The mean, the margin of its 95% interval by seeds, and the difference of each seed.
    """
    for each in figures(f"learning_{name}")["fresh"]["differences"]:
        if {each["first"], each["second"]} == {first, second}:
            points = 100 if each["first"] == first else -100
            seeds = [points * one for one in each["seeds"]]
            return points * each["difference"], 100 * each["margin_of_seeds"], seeds
    raise KeyError(f"{name} compares no {first} with {second}")


def learning_differences(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Return the table of differences of success on fresh tasks between estimators as Markdown.

    Args:
        name: The experiment's name.
        pairs: The estimators that are compared: the first minus the second.
    """
    head = "| difference on fresh tasks, in points | seen | of each seed | 95% interval by seeds |"
    lines = []
    for first, second in pairs:
        seen, margin, each = difference(name, first, second)
        title = f"{title_of(first)} − {title_of(second)}"
        seeds = ", ".join(f"{one:+.1f}" for one in each)
        interval = f"{seen - margin:+.1f} to {seen + margin:+.1f}"
        lines.append((title, f"{seen:+.1f}", seeds, interval))
    return markdown(head, lines)


def prompt_styles() -> str:
    """Return the comparison of prompts with a memory and conversations as Markdown: HGPO with the same three seeds."""
    head = "| fresh tasks | memory | chat | chat − memory | A/A, memory |"
    lines = []
    for world, title in WORLDS.items():
        cells = [title]
        for style in ("memory", "chat"):
            fresh = figures(f"learning_{world}_{style}")["fresh"]
            cells.append(f"{percent(fresh['warm-start'])} → {percent(fresh['hgpo'])}")
        for style, other in (("chat", "memory/hgpo"), ("memory", f"hgpo{OTHER_SEEDS}")):
            seen, margin, _ = difference(f"{world}_{style}", "hgpo", other)
            cells.append(f"{seen:+.1f} (± {margin:.1f})")
        lines.append(cells)
    return markdown(head, lines)


def title_of(estimator: str) -> str:
    """Return an estimator's title; one with parameters is written as it is on the command line."""
    name = estimator.removesuffix(OTHER_SEEDS)
    return ESTIMATORS.get(name, f"`{name}`") + estimator.removeprefix(name)


def pivot(name: str, head: str) -> str:
    """Return rows as Markdown: a line for each case, a column for what was measured."""
    lines: dict[str, list[str]] = {}
    for row in load_rows(name):
        note = f" ({row.note})" if row.note else ""
        lines.setdefault(row.case, []).append(row.shown_value() + note)
    return markdown(head, [(case, *cells) for case, cells in lines.items()])


def serve() -> str:
    """Return the table of served and local environments as Markdown."""
    head = "| | steps/s of 256 sessions | p50, p95 | with pauses | short sessions/s | memory | CPU | local steps/s |"
    lines = []
    for name, found in figures("serve").items():
        fast = found["as_fast_as_possible"]
        paced = found["paced"]
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


def protocols() -> str:
    """Return the effects of protocols in points as Markdown: a line for each protocol, a column for each policy."""
    policies = figures("protocols")["policies"]
    head = "| protocol |"
    lines: dict[str, dict[str, str]] = {}
    for title, found in policies.items():
        head += f" {title}: {100 * found['success']:.0f}% |"
        for each in found["effects"]:
            empty = dict.fromkeys(policies, "")
            lines.setdefault(each["protocol"], empty)[title] = _effect(each)
    return markdown(head, [(name, *line.values()) for name, line in lines.items()])


def _effect(each: Mapping[str, Any]) -> str:
    if each["kind"] == "none":
        return "·" if each["effect"] is not None else "?"
    shown = f"{100 * each['low']:+.1f} to {100 * each['high']:+.1f}"
    if each["kind"] != "spread" or each["effect"]:
        shown = f"{100 * each['effect']:+.1f}, {shown}"
    return shown.replace("-", "−")


def protocol_sources() -> str:
    """Return what every protocol does and where it was seen as Markdown."""
    named = {
        each["protocol"]: (each["protocol"], each["sentence"], each["source"])
        for found in figures("protocols")["policies"].values()
        for each in found["effects"]
    }
    return markdown("| protocol | what it does | seen in |", named.values())


def protocols_reach() -> str:
    """Return whether the number of environments explains the numbers of a public issue."""
    reach = figures("protocols")["reach"]
    found = {name: f"{100 * value:.0f}" for name, value in reach.items()}
    return (
        "One checkpoint was reported with .84, .77 and .52 on 64, 128 and 140 environments (aiming-lab/SkillRL #68), "
        f"which is out of reach of draws and orders: 64 and 140 draws of 140 games differ by at most {found['draws']} "
        f"points at 95% ({found['tasks']} if games do not repeat and always end in the same way), {found['seen']} were "
        f"seen, which draws give with p = {reach['p']:.0e}; and if every game is played once, 12 more of them cannot "
        f"bring .77 of 128 below {found['least']}% of 140 with the same outcomes, easy games first included. It would "
        "take other games for each number that were chosen and not drawn, or environments that end in another way when "
        "more of them run at once: failures, time limits, resets."
    )


def percent(measured: dict[str, float]) -> str:
    """Format a fraction with its interval."""
    return f"{measured['mean']:.1%} ({measured['low']:.1%} to {measured['high']:.1%})"


def appworld_costs() -> str:
    """Return the table of integrations/appworld/README.md."""
    found = figures("appworld")
    columns = {}
    for what, ending in (("world", ""), ("server", " of the original")):
        for number, one in found[f"{what}s"].items():
            plural = "" if number == "1" else "s"
            columns[f"{number} {what}{plural}{ending}"] = one
    lines = [f"| | {' | '.join(columns)} |", f"|---{'|---:' * len(columns)}|"]
    for name in dict.fromkeys(name for one in columns.values() for name in one):
        values = (
            f"{one[name]:,.0f}" if name in one else "" for one in columns.values()
        )
        lines.append(f"| {name} | {' | '.join(values)} |")
    return "\n".join(lines)


PAIRS: Final = (
    ("hgpo", "grpo"),
    ("grpo", f"grpo{OTHER_SEEDS}"),
    ("hgpo", f"grpo{OTHER_SEEDS}"),
)

BIAS: Final = "| weights of the copy | mean gap of log-probabilities | no correction | token | sequence |"
REQUESTS: Final = (
    "| steps | open | memory | rollouts | advantages | results | group | transcript | HGPO | compare "
    "| search | contexts |"
)

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
        "rollout correction": partial(pivot, "rollout_correction", BIAS),
    },
    "docs/repeatable.md": {
        "protocols": protocols,
        "reach": protocols_reach,
        "sources": protocol_sources,
    },
    "docs/viewer.md": {"speed": partial(pivot, "viewer", REQUESTS)},
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
        begin = f"<!-- {title}: written by {command} -->"
        end = f"<!-- end of {title} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n\n{make()}\n\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / name).write_text(rewrite(name), "utf-8")
