"""Create the data of the notebooks from runs; the columns that they need, in small files.

    python -m tools.notebook_data webshop RUN      every step of a run  → notebooks/data/webshop.parquet
    python -m tools.notebook_data alfworld RUN     every step of a run  → notebooks/data/alfworld.parquet
    python -m tools.notebook_data truth RUN TRUTH  a run with its true advantages → research/notebooks/data/

The files in the repository were made of these runs:

    python benchmarks/learning.py --world webshop --estimators hgpo --seeds 0     its run runs/learning/webshop/hgpo-0
    hgpo rollout --policy hgpo_train.cli.quickstart_run:PLAYER --tasks 144 --action-format command --out RUN
    python -m research.benchmarks.study --world webshop    its run runs/study/webshop-strong-1
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import polars as pl

from hgpo_datasets import scan_steps
from hgpo_train.advantages.advantage_tables import join_advantages

ROOT: Final = Path(__file__).parent.parent
DATA: Final = {
    "webshop": ROOT / "notebooks/data",
    "alfworld": ROOT / "notebooks/data",
    "truth": ROOT / "research/notebooks/data",
}
STEPS: Final = (
    "run", "iteration", "task_id", "group", "trajectory", "step", "task_type", "task", "state", "action",
    "action_valid", "action_admissible", "won", "aborted", "reward", "score", "episode_return",
)  # fmt: skip
HASHES: Final = tuple(f"history_hash_{k}" for k in range(5))


def main() -> None:
    """Write the file that the command line asks for."""
    kind, run, *rest = sys.argv[1:] or ["help", ""]
    if kind in ("webshop", "alfworld"):
        table = scan_steps(run, plain=True).select(STEPS).collect()
    elif kind == "truth":
        truth = pl.scan_parquet(rest[0])
        steps = scan_steps(run, plain=True).select(*STEPS, *HASHES)
        table = join_advantages(steps, truth.drop("env_id")).collect()
    else:
        sys.exit(__doc__)
    path = DATA[kind] / f"{kind}.parquet"
    table.write_parquet(path, compression_level=19)
    print(f"{table.height:,} steps in {path}")


if __name__ == "__main__":
    main()
