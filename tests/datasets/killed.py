"""Kill writing processes and check the runs they leave; test_faults.py runs this script as a separate process.

    python killed.py FOLDER random KILLS SEED       at random moments
    python killed.py FOLDER steps EVERY             before and after every n-th call that changes the disk

The process imports Polars but never computes with it, so that it can fork safely. Each writer and each check is a fork.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from faults import Fault
from groups import Rows, group

GROUPS_A_RUN = int(os.environ.get("GROUPS_A_RUN", "40"))
LONGEST_S = 0.15
STEPS = 56


def rows(number: int) -> Rows:
    members = 1 + number % 4
    return group(f"task {number}", members, 5 + number % 50, prompt=f"prompt {number} " * (number % 100))


def write(folder: Path, warm: int | None = None) -> None:
    """Write one shard per group and log every commit that has returned; signal on a pipe when imports are done."""
    from hgpo_datasets import GroupKey, StepWriter, derived_columns, shards
    from hgpo_datasets import rows as frames

    shards.encode(derived_columns.complete(frames.frame(rows(0), 8, {"run": "warm"}), 8), {})
    if warm is not None:
        os.write(warm, b"!")
    with StepWriter(folder, run="killed", config={"x": 1}) as writer:
        for number in range(GROUPS_A_RUN):
            if GroupKey(0, f"task {number}", 0) in writer.committed:
                continue
            writer.add_group(rows(number))
            writer.commit()
            with (folder.parent / f"{folder.name}.noted").open("a") as file:
                file.write(f"{number}\n")


def check(folder: Path, resumed: bool) -> None:
    """Assert that every logged group is in the run exactly once and unchanged, and that every file can be read."""
    import polars as pl

    from hgpo_datasets import StepWriter, scan_steps, shards, verify
    from hgpo_envs.errors import InputError

    log = folder.parent / f"{folder.name}.noted"
    noted = {int(line) for line in log.read_text().split()} if log.exists() else set()
    if not (folder / "manifest.jsonl").exists():
        assert not noted, "a committed row is lost"
        return  # killed before it wrote anything
    for file in folder.glob("steps/*.parquet"):
        shards.decode(file)
    if any((folder / "steps").glob("*")):
        pl.read_parquet(folder / "steps")  # fails if there are other files
    if resumed:
        StepWriter(folder, run="killed").close()
        report = verify(folder)
        assert report.ok, report.problems
        assert not report.notes, report.notes
    try:
        steps = scan_steps(folder).select("task_id", "trajectory", "step", "prompt").collect()
    except InputError as error:
        if noted:
            raise AssertionError("what was committed cannot be read") from error
        return
    seen = Counter(steps["task_id"])
    assert noted <= {int(task.split()[1]) for task in seen}, "a committed row is lost"
    for task, count in seen.items():
        assert count == len(rows(int(task.split()[1]))), f"lost or doubled rows: {task}"
    assert not steps.select("trajectory", "step").is_duplicated().any(), "doubled rows"


def forked(action: object, *arguments: object) -> int:
    """Fork a child that runs the action and exits with 0, or with 1 if it raised; return the child's id."""
    child = os.fork()
    if child:
        return child
    try:
        action(*arguments)  # type: ignore[operator]
    except BaseException:  # noqa: BLE001 (the fork must end here, whatever was raised)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def waited(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_and_die(folder: Path, at: int, how: str) -> None:
    Fault(at, how).install()
    write(folder)


def kill_at_random(folder: Path, kills: int, seed: int) -> dict[str, int]:
    draw = random.Random(seed)
    killed = bad = runs = 0
    run = folder / "run0"
    while killed < kills:
        read_end, write_end = os.pipe()
        child = forked(write, run, write_end)
        os.close(write_end)
        os.read(read_end, 1)
        time.sleep(draw.uniform(0, LONGEST_S))
        os.kill(child, signal.SIGKILL)
        os.close(read_end)
        if waited(child) == 0:
            bad += waited(forked(check, run, True)) != 0
            runs += 1
            run = folder / f"run{runs}"
        else:
            killed += 1
            bad += waited(forked(check, run, draw.random() < 0.3)) != 0
    return {"killed": killed, "bad": bad, "runs_finished": runs}


def kill_at_steps(folder: Path, every: int) -> dict[str, int]:
    killed = bad = 0
    for how in ("kill before", "kill after"):
        for at in range(1, STEPS + 1, every):
            run = folder / f"{how.split()[1]}{at}"
            killed += waited(forked(write_and_die, run, at, how)) == -signal.SIGKILL
            bad += waited(forked(check, run, False)) != 0
            bad += waited(forked(write, run)) != 0  # resumes the killed run
            bad += waited(forked(check, run, True)) != 0
    return {"killed": killed, "bad": bad}


if __name__ == "__main__":
    import hgpo_datasets  # noqa: F401 (imported once, before the forks)

    folder, mode, *numbers = sys.argv[1:]
    kill = kill_at_random if mode == "random" else kill_at_steps
    result = kill(Path(folder), *map(int, numbers))
    print(json.dumps(result))
