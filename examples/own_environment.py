"""A custom benchmark: BabyAI's levels (Chevalier-Boisvert et al. 2019) as text, with the package `minigrid`.

    hgpo rollout --env examples.own_environment:BABYAI --policy expert --out runs/babyai
    hgpo train examples/own_environment.toml

docs/environments.md explains it, and how to install it under an id.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import gymnasium
import minigrid
from minigrid.utils.baby_ai_bot import BabyAIBot

from hgpo_envs.engine import State, Task
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.errors import InputError, UnknownTask, unknown

gymnasium.register_envs(minigrid)
# in minigrid's order
ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "open"]
# the seeds of each level
SPLITS = {"train": range(10_000), "test": range(10_000, 10_100)}

TEMPLATE = """
Your task: {{ task }}
{% for pair in pairs %}
{{ pair.observation }}
> {{ pair.action }}
{% endfor %}
{{ observation }}
Choose one of: {{ admissible_actions | join(", ") }}
{% if action_format == "response" %}
Think inside <think> </think>, then give the action inside <action> </action>.
{% endif %}
"""


class BabyAIEngine:
    """Plays one task at a time: a level and a seed, such as ``GoToLocal-7``."""

    env: Any  # minigrid's environment
    taken: int | None  # the last action's number

    def start(self, task_id: str) -> State:
        level, _, seed = task_id.rpartition("-")
        self.env = gymnasium.make(f"BabyAI-{level}-v0").unwrapped
        self.taken = None
        with contextlib.redirect_stdout(None):  # minigrid prints which rooms it rejects
            self.env.reset(seed=int(seed))
        return self._show(reward=0.0)

    def act(self, command: str) -> State:
        if command not in self.state.actions:
            self.taken = self.env.actions.done
            self.state = replace(self.state, valid=False, reward=0.0)
            return self.state
        self.taken = ACTIONS.index(command)
        _, reward, terminated, truncated, _ = self.env.step(self.taken)
        return self._show(
            float(reward), terminated=terminated, truncated=truncated and not terminated
        )

    def _show(
        self, reward: float, *, terminated: bool = False, truncated: bool = False
    ) -> State:
        self.state = State(
            text=describe(self.env),
            actions=[]
            if terminated or truncated
            else [action for action in ACTIONS if offered(self.env, action)],
            terminated=terminated,
            truncated=truncated,
            won=terminated and reward > 0,
            reward=reward,
            score=reward,
        )
        return self.state


def offered(env: Any, action: str) -> bool:
    """Return whether an action has an effect."""
    ahead = env.grid.get(*env.front_pos)
    carried = env.carrying
    return {
        "go forward": ahead is None or ahead.can_overlap(),
        "pick up": ahead is not None and ahead.can_pickup() and carried is None,
        "drop": ahead is None and carried is not None,
        "open": ahead is not None and ahead.type in ("door", "box"),
    }.get(action, True)


def describe(env: Any) -> str:
    """Return a line per visible object, with its relative position, as in BabyAI-Text (Carta et al. 2023).

    Of the walls, only the one ahead is included.
    """
    # rotated: the agent looks up from the middle of the last row
    grid, visible = env.gen_obs_grid()
    middle = grid.width // 2
    last = grid.height - 1
    lines = []
    for row, column in itertools.product(range(last, -1, -1), range(grid.width)):
        thing = grid.get(column, row)
        forward = last - row
        right = column - middle
        if (
            thing is None
            or not visible[column, row]
            or (thing.type == "wall" and right)
        ):
            continue
        words = [
            word for word in ("locked", "open") if getattr(thing, f"is_{word}", False)
        ]
        name = " ".join(["a", *words, thing.color, thing.type])
        ways = [f"{forward} forward"] if forward else []
        ways += [f"{abs(right)} {'right' if right > 0 else 'left'}"] if right else []
        lines.append(
            f"You see {name} {' and '.join(ways)}." if ways else f"You carry {name}."
        )
    return "\n".join(lines) or "You see nothing."


class BabyAISource:
    """The tasks of some levels.

    Args:
        levels: Names of levels, separated by commas.
    """

    name = "BabyAI"

    def __init__(self, levels: str = "GoToLocal,PickupLoc,PutNextLocal") -> None:
        self._levels = levels.split(",")
        self._engine = BabyAIEngine()

    def ids(self, split: str) -> list[str]:
        if split not in (*SPLITS, "all"):
            raise InputError(unknown("split", split, (*SPLITS, "all")))
        seeds = [
            seed
            for name, seeds in SPLITS.items()
            if split in (name, "all")
            for seed in seeds
        ]
        return [f"{level}-{seed}" for seed in seeds for level in self._levels]

    def task(self, task_id: str) -> Task:
        level, _, seed = task_id.rpartition("-")
        split = next(
            (
                name
                for name, seeds in SPLITS.items()
                if seed.isdecimal() and int(seed) in seeds
            ),
            None,
        )
        if level not in self._levels or split is None:
            raise UnknownTask(
                f"expected a task such as {self._levels[0]}-0, received {task_id!r}"
            )
        self._engine.start(task_id)
        return Task(
            task_id,
            split,
            self._engine.env.mission,
            level,
            {"minigrid": version("minigrid")},
        )

    def engine(self) -> BabyAIEngine:
        return BabyAIEngine()


class Expert:
    """BabyAI's own bot, which reads the environment's internal state."""

    def reset(self, task: Task, state: State, engine: Any = None) -> None:
        if engine is None:
            raise InputError(
                "BabyAI's expert requires the environment in its own process; omit --workers"
            )
        self._engine = engine
        self._bot = BabyAIBot(engine.env)

    def act(self, state: State) -> str:
        return ACTIONS[self._bot.replan(self._engine.taken)]


BABYAI = EnvironmentSpec(
    id="Examples/BabyAI-v0",
    source=BabyAISource,
    max_steps=64,
    template=TEMPLATE,
    players={"expert": Expert},
    evaluation_split="test",
)
