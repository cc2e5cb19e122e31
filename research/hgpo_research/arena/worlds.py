"""The worlds of the arena: environments, sets of their tasks, and how policies learn there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from hgpo_research.tabular.graphs import compile_tasks
from hgpo_research.tabular.learning import Learning

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hgpo_research.tabular.graphs import TaskSet


@dataclass(frozen=True, kw_only=True)
class World:
    """A world.

    Attributes:
        env: The environment.
        options: Its keyword arguments.
        tasks: Number of tasks.
        seed: The seed of their draw. Task sets from 700 on are kept for blind checks.
        skill: Factor of the first logits' scores, as of the policy `softmax`.
        memory: Number of past steps that the first logits depend on.
        taste: Standard deviation of the noise in the first logits.
        reward: What is learned.
        iterations: Number of updates.
        kl: The divergence per step of an update of separate and of shared logits.
        shares: Whether tasks can share logits by features of actions, so that others are held out.
        install: What must be installed, if it is not part of the package.
    """

    env: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tasks: int = 4
    seed: int
    skill: float = 0.0
    memory: int = 0
    taste: float = 0.5
    reward: Literal["success", "score"] = "success"
    iterations: int = 20
    kl: float = 0.02
    shares: bool = False
    install: str = ""

    def compile(self, folder: Path | None, *, shared: bool) -> tuple[TaskSet, TaskSet]:
        """Open the tasks as graphs, with as many held-out ones if logits are shared.

        Args:
            folder: Where graphs may have been stored.
            shared: Whether tasks share logits by features.
        """
        return compile_tasks(
            self.env,
            {"split": "train", **self.options},
            {"skill": self.skill, "memory": self.memory},
            self.tasks,
            self.seed,
            folder,
            shared=shared,
            held_out=self.tasks if shared else 0,
            reward=self.reward,
        )

    def learning(self, seeds: int, update: Literal["kl", "adam"]) -> Learning:
        """Return how policies learn."""
        return Learning(
            seeds=seeds,
            iterations=self.iterations,
            taste=self.taste,
            update=update,
            kl=self.kl,
            learning_rate=LEARNING_RATE,
        )


LEARNING_RATE: Final = 1.0
"""Of Adam: the best of four for every estimator in an earlier sweep."""

_WEBSHOP: Final[dict[str, Any]] = {
    "env": "HGPO/WebShop-v0",
    "skill": 0.4,
    "memory": 1,
    "taste": 1.0,
    "kl": 0.015,
}

WORLDS: Final = {
    "alfworld": World(
        env="HGPO/ALFWorld-v0",
        options={"max_steps": 24},
        seed=611,
        tasks=3,
        skill=0.6,
        taste=1.0,
        shares=True,
    ),
    "webshop-text": World(**_WEBSHOP, seed=621, shares=True),
    "webshop-text-rich": World(
        **_WEBSHOP, seed=631, options={"observation_mode": "text_rich"}
    ),
    "textworld": World(
        env="HGPO/TextWorld-v0",
        options={"level": 8, "max_steps": 25},
        seed=641,
        skill=0.3,
        taste=1.0,
        shares=True,
        install="hgpo-textworld (pip install ./integrations/textworld)",
    ),
    "levers": World(env="hgpo_research.levers:LEVERS", seed=651),
    "two-ways": World(env="hgpo_research.two_ways:TWO_WAYS", seed=661, tasks=3),
    "ice": World(env="hgpo_research.arena.small_worlds:ICE", seed=671),
    "signs": World(env="hgpo_research.arena.small_worlds:SIGNS", seed=681),
    "form": World(
        env="hgpo_research.arena.small_worlds:FORM", seed=691, reward="score"
    ),
}
"""The worlds by name."""
