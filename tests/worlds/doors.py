"""A small complete benchmark for tests: rooms in a row, doors between them, and a lamp to switch on in one room.

It implements only the engine contract. Its texts contain edge cases (quotes, Unicode, newlines).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hgpo_envs.engine import State, Task

ROOMS = [
    "hall",
    "kitchen",
    "study 'blue'",
    "žluťoučká světnice",
    "cellar\nbelow",
    "attic",
]


@dataclass
class DoorsEngine:
    tasks: dict[str, Task]
    place: int = 0
    goal: int = 0
    opened: set[int] = field(default_factory=set)
    finished: bool = False

    def start(self, task_id: str) -> State:
        if task_id not in self.tasks:
            raise KeyError(f"unknown task id {task_id!r} in the house of doors")
        self.goal = 1 + int(task_id.rsplit("-", 1)[1]) % (len(ROOMS) - 1)
        self.place = 0
        self.opened = set()
        self.finished = False
        return self._state(
            f"You are in the {ROOMS[0]}. Your task is to: {self.tasks[task_id].instruction}",
            True,
        )

    def act(self, command: str) -> State:
        if command not in self._actions():
            return self._state("Nothing happens.", False)
        if command == "open door":
            self.opened.add(self.place)
            return self._state("The door is open.", True)
        if command == "press switch":
            self.finished = True
            return self._state(
                f"The lamp is {'on' if self.place == self.goal else 'dead'}.", True
            )
        if command in ("go on", "go back"):
            self.place += 1 if command == "go on" else -1
        return self._state(f"You are in the {ROOMS[self.place]}.", True)

    def _actions(self) -> list[str]:
        if self.finished:
            return []
        actions = ["help", "look", "press switch"]
        if self.place > 0:
            actions.append("go back")
        if self.place + 1 < len(ROOMS):
            actions.append("go on" if self.place in self.opened else "open door")
        return sorted(actions)

    def _state(self, text: str, valid: bool) -> State:
        won = self.finished and self.place == self.goal
        score = float(won) if self.finished else 0.0
        info = {"place": self.place, "doors": {"open": sorted(self.opened)}}
        return State(
            text, self._actions(), valid, self.finished, won, score, score, info
        )


class DoorsSource:
    name = "Doors"

    def __init__(self, count: int = 10) -> None:
        splits = {"train": range(count), "test": range(count, count + 4)}
        self._tasks = {}
        for split, task_id, goal in (
            (s, f"{s}-{n}", 1 + n % (len(ROOMS) - 1))
            for s, ns in splits.items()
            for n in ns
        ):
            instruction = f"light the lamp in the {ROOMS[goal]}."
            self._tasks[task_id] = Task(
                task_id, split, instruction, f"rooms_{goal}", {"house": "1"}
            )

    def ids(self, split: str) -> list[str]:
        ids = [task.id for task in self._tasks.values() if split in ("all", task.split)]
        if not ids:
            raise KeyError(f"unknown split {split!r}. Known: train, test, all")
        return ids

    def task(self, task_id: str) -> Task:
        return self._tasks[task_id]

    def engine(self) -> DoorsEngine:
        return DoorsEngine(self._tasks)


def solution(task_id: str) -> list[str]:
    """Return the shortest sequence of actions that lights the lamp."""
    goal = 1 + int(task_id.rsplit("-", 1)[1]) % (len(ROOMS) - 1)
    return ["open door", "go on"] * goal + ["press switch"]
