"""Writes the README's table of measured facts from the kept results, so that no number in it is typed by hand.

python benchmarks/readme.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = Path(__file__).parent / "results"
BEGIN: Final = "<!-- figures: written by python benchmarks/readme.py -->"
END: Final = "<!-- end of figures -->"

MICRO, MILLI = 1e6, 1e3


def figures(name: str) -> Any:  # noqa: ANN401 - each benchmark keeps what it measures
    """What a benchmark has kept."""
    kept = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return kept.get("figures", kept)


def rows() -> list[tuple[str, str, str, str]]:
    """The table: what, here, elsewhere, the script that measured it."""
    return [*_alfworld(), *_webshop(), *_rollouts(), *_step_tables(), *_advantages(), *_learning()]


def _alfworld() -> list[tuple[str, str, str, str]]:
    found = figures("alfworld")
    against, memory = found["against"], found["memory"]
    fuzz, experts = figures("alfworld_fuzz"), figures("alfworld_experts")["results"]["json_2.1.1"]["expert"]["all"]
    lines = sum(part["lines"] for part in fuzz.values())
    differences = sum(part["differences"] for part in fuzz.values())
    return [
        (
            "ALFWorld, a step with its admissible commands",
            f"{against['native_step_s'] * MICRO:.1f} µs",
            f"original {against['original_step_s'] * MILLI:.0f} ms ({against['step_ratio']:,.0f} ×)",
            "alfworld.py",
        ),
        (
            "ALFWorld, 1,000 live environments",
            f"{memory['native_mb']:.0f} MB",
            f"original {memory['original_mb']:.0f} MB for one",
            "alfworld.py",
        ),
        (
            "ALFWorld, random walks beside the original",
            f"{lines:,} lines",
            f"{differences} differences",
            "alfworld_fuzz.py",
        ),
        (
            "ALFWorld, the expert on the official games, in at most 50 steps",
            f"{experts['won']:,} of {experts['games']:,}",
            "",
            "alfworld_experts.py",
        ),
    ]


def _webshop() -> list[tuple[str, str, str, str]]:
    (found,) = figures("webshop_original").values()
    soak = figures("webshop_soak")["rows"]
    full = figures("webshop_catalogue")["catalogues"][-1]
    slowest = max(kind["p95"] for kind in full["query_ms"].values())
    return [
        (
            "WebShop, a step with its available actions, nothing cached",
            f"{found['native, cold']['ms']['step']:.2f} ms",
            f"original {found['original']['ms']['step']:.0f} ms ({found['ratio']['cold']:.0f} ×)",
            "webshop.py",
        ),
        (
            "WebShop, the same with products and searches cached",
            f"{found['native']['ms']['step']:.3f} ms",
            f"({found['ratio']['warm']:.0f} ×)",
            "webshop.py",
        ),
        (
            f"WebShop, {full['products']:,} products: 95% of searches take at most",
            f"{slowest:.0f} ms",
            f"opens in {full['open_s'] * MILLI:.0f} ms, {full['private_mb']:.0f} MB a further process",
            "webshop_catalogue.py",
        ),
        (
            "WebShop, ten minutes in eight processes",
            f"{sum(row['episodes'] for row in soak):,} episodes",
            f"{sum(row['different'] for row in soak)} different from one process",
            "webshop_soak.py",
        ),
    ]


def _rollouts() -> list[tuple[str, str, str, str]]:
    tail, overhead = figures("rollouts_tail")["0.6"], figures("rollouts_overhead")["HGPO/ALFWorld-v0"]
    return [
        (
            "Rollouts, 128 environments, long-tailed response times",
            f"{tail['collector_s']:.0f} s",
            f"in lockstep {tail['lockstep_s']:,.0f} s ({tail['ratio']:.1f} ×)",
            "rollouts.py",
        ),
        ("Rollouts, the collector's share of a step", f"{overhead['else']:.0f} µs", "", "rollouts.py"),
    ]


def _step_tables() -> list[tuple[str, str, str, str]]:
    formats = figures("step_tables")["formats"]
    table, lines = (formats[f"numbers, texts, tokens: {name}"] for name in ("step table", "JSON lines"))
    return [
        (
            "Step table, a row with texts and tokens",
            f"{table['bytes_per_row']:.0f} bytes",
            f"JSON lines {lines['bytes_per_row']:,.0f} ({lines['bytes_per_row'] / table['bytes_per_row']:.0f} ×)",
            "step_tables.py",
        ),
    ]


def _advantages() -> list[tuple[str, str, str, str]]:
    found = figures("advantages")
    size = "128 × 16"
    own, theirs = found["sizes"][size], found["official"][size]
    official = theirs["HGPO K=2"] + theirs["step returns"]
    mine = own["HGPO K=2"]["with_advantages_s"]
    largest = found["chunks"][-1]
    return [
        (
            f"HGPO advantages (K = 2), {own['rows']:,} steps from the file",
            f"{mine * MILLI:.0f} ms",
            f"official {official:.0f} s ({official / mine:,.0f} ×)",
            "advantages.py",
        ),
        (
            f"HGPO advantages, {largest['rows']:,} steps",
            f"{largest['cpu_s']:.0f} s",
            f"{largest['peak_mb']:.0f} MB of memory",
            "advantages.py",
        ),
    ]


def _learning() -> list[tuple[str, str, str, str]]:
    lines = []
    for name, world in (("ALFWorld", "alfworld"), ("WebShop", "webshop")):
        if not (RESULTS / f"learning_{world}.json").exists():
            continue
        ends = figures(f"learning_{world}")["ends"]
        start, end, steps = ends.pop("hgpo")
        what = f"{name}, held-out success after {steps:,.0f} training steps, 1.1M parameters, HGPO (K = 2)"
        names = {"gigpo": "GiGPO", "g2po": "G2PO", "grpo": "GRPO"}
        others = ", ".join(f"{names[estimator]} → {found:.0%}" for estimator, (_, found, _) in ends.items())
        lines.append((what, f"{start:.0%} → {end:.0%}", others, "learning.py"))
    return lines


def table() -> str:
    """The table as Markdown."""
    head = ["| | here | elsewhere | measured by `benchmarks/…` |", "|---|---|---|---|"]
    return "\n".join(
        [*head, *(f"| {what} | {here} | {elsewhere} | `{script}` |" for what, here, elsewhere, script in rows())]
    )


def rewrite(page: str) -> str:
    """The page with its table made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(rewrite(readme.read_text("utf-8")), "utf-8")
