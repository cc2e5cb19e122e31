"""The goals of a WebShop catalogue as tasks, and the engines that play them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

from hgpo_envs.engine import Task
from hgpo_envs.errors import check_known
from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.engine import WebShopEngine
from hgpo_envs.webshop.engine.engine import (
    AfterDone,
    ObservationMode,
    Quirks,
    RewardScale,
)
from hgpo_envs.webshop.engine.goals import split_ranges
from hgpo_envs.webshop.engine.reward import OptionColours
from hgpo_envs.webshop.engine.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from hgpo_envs.webshop.engine.goals import GoalKind


class TaskIds(Sequence[str]):
    """Consecutive goal indices as task ids, without a list of them in memory."""

    def __init__(self, places: range) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 (an id, or several for a slice)
        return (
            TaskIds(self._places[index])
            if isinstance(index, slice)
            else str(self._places[index])
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list


class GoalTasks:
    """Goals as tasks. A task's id is its goal's index in the original's shuffled order, as text."""

    name: str = "WebShop"
    splits: Mapping[str, range]
    _versions: Mapping[str, str]

    def ids(self, split: str) -> TaskIds:
        """Return the task ids of `train`, `eval`, `test` or `all`, in the goals' order.

        Raises:
            InputError: There is no such split.
        """
        check_known("split", split, (*self.splits, "all"))
        # they are disjoint and complete
        every = range(sum(map(len, self.splits.values())))
        return TaskIds(self.splits.get(split, every))

    def _task(self, index: int, instruction: str, category: str) -> Task:
        split = next(name for name, places in self.splits.items() if index in places)
        return Task(str(index), split, instruction, category, self._versions)


class WebShopSource(GoalTasks):
    """The tasks of one catalogue.

    Args:
        data: A built catalogue; None is the bundled one.
        goals: `synthetic` (an instruction with every choice of options) or `human`.
        observation_mode: `text` or `text_rich`.
        show_attributes: Whether item pages have the tab `Attributes`.
        price_seed: Seed of ranged prices and price bounds, which the original draws without a seed.
        shuffle_seed: Seed of the goals' order. In verl-agent, worker i has `price_seed = shuffle_seed = seed + i //
            group`, so groups have different goals; here all environments share one order by default.
        quirks: `option_colours`, `magic_queries`, `after_done`, `reward_scale`: irregularities of the original, see
            `hgpo_envs.webshop.engine.engine.Quirks`.

    Raises:
        InputError: There is no catalogue, it has no such goals, or an argument is unknown.
    """

    def __init__(
        self,
        data: str | Path | None = None,
        goals: GoalKind = "synthetic",
        observation_mode: ObservationMode = "text",
        show_attributes: bool = False,
        price_seed: int = 0,
        shuffle_seed: int = 233,
        **quirks: str | bool,
    ) -> None:
        check_known("observation_mode", observation_mode, get_args(ObservationMode))
        check_known("show_attributes", show_attributes, (True, False))
        self._arguments = (
            (data, goals, observation_mode, show_attributes, price_seed, shuffle_seed),
            quirks,
        )
        catalogue = Catalogue.open(bundled_folder() if data is None else data)
        self.shop: Final = Shop(catalogue, goals, price_seed, shuffle_seed)
        self.observation_mode: Final = observation_mode
        self.show_attributes: Final = show_attributes
        for name, value in quirks.items():
            check_known(name, value, _QUIRKS[name])
        self.quirks: Final = Quirks(**dict[str, Any](quirks))
        self.splits = split_ranges(len(self.shop.goals))
        self.files: Final = dict[str, str](catalogue.manifest["sources"])
        """SHA-256 of the files that the catalogue was built from, by name."""
        self._products = catalogue.manifest["products"]
        self._versions = {
            "catalogue": catalogue.manifest["id"],
            "nouns": catalogue.manifest["nouns"],
            "goals": f"{goals}, prices {price_seed}, order {shuffle_seed}",
            "pages": observation_mode + (" with attributes" if show_attributes else ""),
        }
        if self.quirks != Quirks():
            changed = asdict(self.quirks).items() - asdict(Quirks()).items()
            self._versions["oddities"] = ", ".join(
                f"{name}={value}" for name, value in sorted(changed)
            )

    def __reduce__(self) -> tuple[Callable[..., WebShopSource], tuple[object, ...]]:
        """Open the catalogue again in another process."""
        arguments, quirks = self._arguments
        return partial(WebShopSource, **dict[str, Any](quirks)), arguments

    def task(self, task_id: str | int) -> Task:
        """Return a goal as a task, with the category of its product as type.

        Raises:
            KeyError: There is no such goal.
        """
        goal = self.shop.goal(task_id)
        return self._task(goal.index, goal.instruction, goal.product.category)

    def contents(self, task_id: str) -> dict[str, str]:
        """Return a goal, and what pages and rewards come from (`hgpo_envs.engine.TaskSource`).

        The catalogue's id is left out: it depends on whether its files are compressed.
        """
        goal = self.shop.goal(task_id)
        options = (
            dict(goal.options) if isinstance(goal.options, Mapping) else goal.options
        )
        versions = {
            name: value for name, value in self._versions.items() if name != "catalogue"
        }
        return {
            "instruction": goal.instruction,
            "goal": json.dumps(
                [goal.product.asin, goal.attributes, options, goal.price_upper]
            ),
            "catalogue": json.dumps([sorted(self.files.values()), self._products]),
            "versions": json.dumps(versions),
        }

    def engine(self) -> WebShopEngine:
        """Return a new engine over this catalogue."""
        return WebShopEngine(
            self.shop,
            self.observation_mode,
            self.show_attributes,
            self.quirks,
        )


_QUIRKS: Final[dict[str, Collection[object]]] = {
    "option_colours": get_args(OptionColours),
    "magic_queries": (True, False),
    "after_done": get_args(AfterDone),
    "reward_scale": get_args(RewardScale),
}
