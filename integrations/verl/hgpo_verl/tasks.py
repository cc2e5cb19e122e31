"""The data set of tasks that verl draws from: those that `hgpo train` plays, in the same order."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from torch.utils.data import Dataset

from hgpo_train.rollout.plan import PlannedGroup, RolloutSpec, plan_groups
from hgpo_train.training.data import open_training_env
from hgpo_verl.run_settings import TRAINING, read_settings

if TYPE_CHECKING:
    from hgpo_train.training.config import Config


class TaskDataset(Dataset[dict[str, Any]]):
    """The tasks of all iterations of a run, or those of an evaluation.

    Row i of training is task i % tasks of iteration i // tasks. It is drawn in order (`data.shuffle` is false), so a
    resumed run continues with the tasks that an uninterrupted run would play.

    Args:
        data_files: ``training:SPLIT`` or ``evaluation:SPLIT``: `data.train_files` or `data.val_files`.
        config: verl's section `data`, with HGPO's section as `hgpo`.
        unused: Other arguments of verl's data sets.
    """

    def __init__(self, data_files: str, config: DictConfig, **unused: object) -> None:
        del unused
        section = OmegaConf.to_container(config.hgpo, resolve=True)
        assert isinstance(section, dict)
        self._config: Config = read_settings(section).config
        # verl passes only the file name
        purpose, _, split = str(data_files).partition(":")
        self._train = purpose == TRAINING
        self._tasks = open_training_env(self._config, split).tasks
        self._planned = lru_cache(maxsize=4)(self._plan)

    def __len__(self) -> int:
        if self._train:
            return self._config.iterations * self._config.rollout.tasks
        return min(self._config.evaluation.tasks, len(self._tasks))

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        iteration, place = (
            divmod(index, self._config.rollout.tasks) if self._train else (0, index)
        )
        group = self._planned(iteration)[place]
        return {
            # verl counts these; the prompts are the loop's
            "raw_prompt": [{"role": "user", "content": group.task_id}],
            "data_source": self._config.environment.id,
            "reward_model": {"ground_truth": None},
            "index": index,
            "agent_name": "hgpo_steps",
            "evaluation": not self._train,
            "position": group.position,
            "iteration": group.iteration,
            "task_id": group.task_id,
            "group": group.group,
        }

    def _plan(self, iteration: int) -> list[PlannedGroup]:
        config = self._config
        if not self._train:
            sweep = RolloutSpec(len(self), config.evaluation.group_size, order="sweep")
            return list(islice(plan_groups(self._tasks, sweep), len(self)))
        count = config.rollout.tasks
        spec = RolloutSpec(
            count,
            config.rollout.group_size,
            config.seed,
            iteration=iteration,
            skip=iteration * count,
        )
        return list(islice(plan_groups(self._tasks, spec), count))
