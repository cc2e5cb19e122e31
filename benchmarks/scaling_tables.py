"""The tables of docs/scaling.md, from the kept results of `scaling.py` and `sharded_learner.py`."""

from __future__ import annotations

from typing import Any, Final

LOSSES: Final = {
    "rollout": "few sequences per engine",
    "tail": "the last episodes",
    "scoring": "few rows per GPU",
    "update": "few rows per GPU, gathering weights",
    "publication": "publication",
    "advantages": "advantages",
    "step table": "the one writer",
    "driver": "the one driver",
    None: "",
}


def iterations(figures: dict[str, Any], title: str) -> str:
    """Return the simulated iterations of both models by number of GPUs as Markdown."""
    tables = []
    for model, rows in figures[title].items():
        phases = ("rollout", "tail", "learner", "publication", "step table", "driver")
        head = _head(
            f"{model}: GPUs", ["rollouts", *phases, "total, s", "efficiency", "160 iterations", "lost most by"]
        )
        tables.append("\n".join([*head[:1], "|---:" * 11 + "|---|", *(_scaled(row, phases) for row in rows)]))
    return "\n\n".join(tables)


def _scaled(row: dict[str, Any], phases: tuple[str, ...]) -> str:
    seconds = {**row["seconds"], "learner": row["seconds"]["scoring"] + row["seconds"]["update"]}
    values = [f"{row['gpus']:,}", f"{row['rollouts']:,}", *(f"{seconds[phase]:,.0f}" for phase in phases)]
    cost = f"{row['gpu_hours_of_160']:,.0f} GPU-hours, ${row['dollars_of_160']:,.0f}"
    values += [f"{row['total_s']:,.0f}", f"{row['efficiency']:.0%}", cost, LOSSES[row["bottleneck"]]]
    return f"| {' | '.join(values)} |"


def moved(figures: dict[str, Any]) -> str:
    """Return the bytes that a simulated iteration of growing tasks moves as Markdown."""
    lines = _head("GPUs", ["weights and gradients", "new weights to engines", "rows through the driver", "step table"])
    for row in figures["growing tasks"]["7B"]:
        lines.append(f"| {row['gpus']:,} | " + " | ".join(_bytes(value) for value in row["moved"].values()) + " |")
    return "\n".join(lines)


def _bytes(value: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value / 1e6:.0f} MB"


def sensitivity(figures: dict[str, Any]) -> str:
    """Return what changed assumptions change as Markdown."""
    lines = _head("assumption", ["256 GPUs, growing tasks", "lost most by", "64 GPUs, 16 tasks", "lost most by"])
    for row in figures["sensitivity"]:
        values = [row["change"]]
        for one in (row["growing"], row["fixed"]):
            values += [f"{one['total_s']:,.0f} s, {one['efficiency']:.0%}", LOSSES[one["bottleneck"]]]
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def assumptions(figures: dict[str, Any]) -> str:
    """Return every assumption of the simulation with its source as Markdown."""
    lines = _head("assumption", ["value", "unit", "source"])
    measured = figures["measured"]
    for name, value, unit, source in figures["assumptions"]:
        known = measured.get(name, value)
        shown = f"{known:,g}" if 1e-3 <= known < 1e6 or not known else f"{known:.3g}"
        lines.append(f"| `{name}` | {shown} | {unit} | {source} |")
    return "\n".join(lines)


def validation(figures: dict[str, Any]) -> str:
    """Return the predicted and measured seconds of a small model's sampler as Markdown."""
    lines = _head("CPU seconds of", ["predicted", "measured", "ratio"])
    for row in figures["validation"]:
        values = f"{row['predicted_s']:.2f} | {row['measured_s']:.2f} | {row['ratio']:.2f}"
        lines.append(f"| {row['what']} | {values} |")
    return "\n".join(lines)


def sharded_learner(figures: dict[str, Any]) -> str:
    """Return the differences of the sharded learner as Markdown."""
    found = figures["cases"]
    columns = {"gradient": "first gradient", "weight": "weights after 10 steps", "actor/loss": "last loss"}
    lines = _head("trained", ["processes", *columns.values()])
    for row in found:
        values = (f"{row[name]:.1e}" if name in row else "" for name in columns)
        lines.append(f"| {row['case']} | {row['processes']} | {' | '.join(values)} |")
    return "\n".join(lines)


def _head(first: str, names: list[str]) -> list[str]:
    return [f"| {first} | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
