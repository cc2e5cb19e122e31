"""Plays episodes with AppWorld's own class. Runs in AppWorld's interpreter: PYTHON original_worker.py EPISODES RESULTS.

Both are files of JSON: a list of ``[task, programs]``, and a list of what was seen.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(episodes: str, results: str) -> None:
    """Play all episodes, one world after the other."""
    from appworld import AppWorld

    played: list[dict[str, Any]] = []
    for number, (task, programs) in enumerate(
        json.loads(Path(episodes).read_text("utf-8"))
    ):
        world = AppWorld(task, experiment_name=f"class-{number}")
        outputs = []
        completed = []
        for program in programs:
            outputs.append(world.execute(program))
            completed.append(bool(world.task_completed()))
            if completed[-1]:
                break
        tests = world.evaluate()
        world.close()
        played.append(
            {
                "outputs": outputs,
                "completed": completed,
                "evaluation": tests.to_dict(stats_only=False),
            }
        )
    Path(results).write_text(json.dumps(played), "utf-8")
    os._exit(0)  # an ordinary exit takes seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
