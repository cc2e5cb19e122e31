"""Rollouts in the house of doors."""

from pathlib import Path

import pytest

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.episode import settings_for
from hgpo_envs.sources import Split, open_shared
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import EnvHandle
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.run import collect_groups

CONTEXT = PolicyContext("Doors", "response")


class Runs:
    """Collects rollouts into new folders and reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def handle(
        self,
        factory: str = "doors:DoorsSource",
        max_steps: int = 20,
        **arguments: object,
    ) -> EnvHandle:
        shared = open_shared(factory, **{"count": 50, **arguments})
        settings = settings_for("Doors", action_format="response", max_steps=max_steps)
        return EnvHandle("HGPO-Test/Doors-v0", shared, settings, Split(shared, "train"))

    def collect(
        self,
        name: str,
        policy="random",
        handle=None,
        *,
        spec=None,
        execution=None,
        **others,
    ):
        policy = make_policy(policy, CONTEXT) if isinstance(policy, str) else policy
        spec = spec or RolloutSpec(tasks=12, group_size=4, seed=3)
        with StepWriter(self.folder / name, run="a run", config={}) as writer:
            return collect_groups(
                handle or self.handle(),
                policy,
                writer,
                spec,
                execution or ExecutionOptions(slots=16),
                **others,
            )

    def steps(self, name: str):
        """The rows of a run. Groups are stored in the order in which they finish, so rows are sorted."""
        return scan_steps(self.folder / name).sort("trajectory", "step").collect()

    def content(self, name: str) -> str:
        return self.steps(name).write_ndjson()


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)
