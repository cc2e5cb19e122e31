"""Create the data of the notebooks from runs; the columns that they need, in small files.

    python -m tools.notebook_data webshop RUN      every step of a run  → notebooks/data/webshop.parquet
    python -m tools.notebook_data alfworld RUN     every step of a run  → notebooks/data/alfworld.parquet

The files in the repository were made of these runs:

    python -m benchmarks learning --world webshop --estimators hgpo --seeds 0     its run runs/learning/webshop/hgpo-0
    hgpo rollout --policy forgetful --tasks 144 --action-format command --out RUN
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from hgpo_datasets import scan_steps

ROOT: Final = Path(__file__).parent.parent
KINDS: Final = ("webshop", "alfworld")
STEPS: Final = (
    "run", "iteration", "task_id", "group", "trajectory", "step", "task_type", "task", "state", "action",
    "action_valid", "action_admissible", "won", "aborted", "reward", "score", "episode_return",
)  # fmt: skip


def main() -> None:
    """Write the file that the command line asks for."""
    kind, run = sys.argv[1:3] if len(sys.argv) == 3 else ("help", "")
    if kind not in KINDS:
        sys.exit(__doc__)
    table = scan_steps(run, plain=True).select(STEPS).collect()
    path = ROOT / f"notebooks/data/{kind}.parquet"
    table.write_parquet(path, compression_level=19)
    print(f"{table.height:,} steps in {path}")


if __name__ == "__main__":
    main()
