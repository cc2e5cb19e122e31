"""Compare the engine with AppWorld's class and HTTP server on random programs.

python -m hgpo_appworld.reference ROOT [--programs 200] [--seed 0] [--python PY]

Each episode has up to five random programs in a task of ROOT, in a world of its own. Outputs, whether the task is
completed, and the evaluation are compared. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hgpo_appworld.data.install import default_python
from hgpo_appworld.reference.compare import (
    differences,
    play_class,
    play_engine,
    play_server,
)
from hgpo_appworld.reference.random_programs import STEPS, random_episodes
from hgpo_envs.errors import InputError


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "root", type=Path, help="AppWorld's root, with tasks that have solutions"
    )
    parser.add_argument(
        "--programs", type=int, default=200, help="number of programs (default: 200)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", help="AppWorld's interpreter")
    given = parser.parse_args()
    try:
        sys.exit(
            _compare(
                given.root,
                given.python or str(default_python()),
                given.programs,
                given.seed,
            )
        )
    except InputError as error:
        sys.exit(f"error: {error}")


def _compare(root: Path, python: str, programs: int, seed: int) -> int:
    # some end before their last program
    episodes = random_episodes(root, -(-programs // (STEPS - 1)), seed)
    originals = {
        "class": list(play_class(root, python, episodes)),
        "server": list(play_server(root, python, episodes)),
    }
    wrong = 0
    for number, ours in enumerate(play_engine(root, python, episodes)):
        for name, played in originals.items():
            for difference in differences(ours, played[number]):
                wrong += 1
                sys.stdout.write(
                    f"episode {number} ({episodes[number].task}), engine and {name}: {difference}\n"
                )
    one = originals["class"]
    sys.stdout.write(
        f"{len(episodes)} episodes, {sum(len(played.outputs) for played in one)} programs executed, "
        f"{sum(output.startswith('Execution failed') for played in one for output in played.outputs)} failed; "
        f"{sum(played.completed[-1] for played in one)} tasks completed, {sum(played.success for played in one)} won; "
        f"{wrong} differences\n"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    main()
