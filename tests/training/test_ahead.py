"""Rollouts of the next iteration during the update (`rollout.ahead`), with an engine that has weights of its own."""

import copy
from collections import defaultdict
from threading import Event

import pytest
from lazily import Lazy
from refusals import refused

from hgpo_datasets import scan_steps
from hgpo_train.rollout.failures import RolloutError
from hgpo_train.training.config import Config, replace
from hgpo_train.training.tracking import read_metrics

TransformersPolicy = Lazy("hgpo_train.policies.transformers:TransformersPolicy")
trainer_module = Lazy("hgpo_train.training.trainer")


def served(model, tokenizer, context):
    """Return an engine with a copy of the weights, as a server has one."""
    policy = TransformersPolicy(copy.deepcopy(model), tokenizer, context.generation)
    publish = policy.publish
    policy.publish = lambda model, version: publish(copy.deepcopy(model), version)
    return policy


@pytest.fixture
def ahead(config, monkeypatch):
    monkeypatch.setattr(
        trainer_module._target(), "trainable_factory", lambda *_: served
    )
    rollout = {
        "tasks": 2,
        "group_size": 2,
        "max_response_tokens": 3,
        "engine": "served",
        "ahead": True,
    }
    changes = {
        "environment": {"max_steps": 3},
        "checkpoint": {"every": 1},
    }
    return replace(config, rollout=rollout, update={"rollout_is": "token"}, **changes)


@pytest.mark.slow
def test_rollouts_run_during_the_update_one_version_behind(ahead, runs, monkeypatch):
    begun: dict[int, Event] = defaultdict(Event)
    module = trainer_module._target()
    collect = module.stages.collect
    update = module.stages.update
    overlaps = []

    def announced(run, state, *progress, **others):
        begun[state.iteration].set()
        return collect(run, state, *progress, **others)

    def waits(run, rows):
        iteration = run.state.iteration
        overlaps.append(begun[iteration + 1].wait(60 if iteration < 2 else 0))
        return update(run, rows)

    monkeypatch.setattr(module.stages, "collect", announced)
    monkeypatch.setattr(module.stages, "update", waits)
    trainer = runs.train(ahead)
    # nothing is collected after the last iteration
    assert overlaps == [True, True, False]
    steps = scan_steps(trainer.shared.folder / "steps").collect()
    assert sorted(steps.select("iteration", "policy_version").unique().rows()) == [
        (0, 0),
        (1, 0),
        (2, 1),
    ]
    lines = read_metrics(trainer.shared.folder / "metrics.jsonl")
    assert [line["training/policy_lag"] for line in lines] == [0, 1, 1]
    assert ["timing_s/gen_wait" in line for line in lines] == [True, True, False]
    assert all(
        line["timing_s/gen"] > 0 and "rollout_corr/rollout_is_mean" in line
        for line in lines
    )
    assert (
        trainer.shared.state.tasks_drawn,
        trainer.shared.state.environment_steps,
    ) == (
        6,
        steps.height,
    )


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["update", "collect"])
def test_a_run_that_fails_keeps_the_rollouts_beside_the_update(
    ahead, runs, monkeypatch, failing
):
    """The rollouts end before the folder is unlocked, and a resumed run trains on each group once."""
    module = trainer_module._target()
    collect = module.stages.collect
    update = module.stages.update

    def fails(run, state, *progress, **others):
        collected = collect(run, state, *progress, **others)
        if failing == "collect" and state.iteration == 2:
            raise RolloutError("too many failures")
        return collected

    def stops(run, rows):
        if failing == "update" and run.state.iteration == 1:
            raise RuntimeError("the update failed")
        return update(run, rows)

    with monkeypatch.context() as patch:
        patch.setattr(module.stages, "update", stops)
        patch.setattr(module.stages, "collect", fails)
        with pytest.raises(
            (RolloutError, RuntimeError), match=r"the update failed|too many failures"
        ):
            runs.train(ahead)
    trainer = runs.train(ahead, resume=True)
    assert (trainer.shared.state.iteration, trainer.shared.state.tasks_drawn) == (3, 6)
    steps = scan_steps(trainer.shared.folder / "steps").collect()
    assert steps.select("iteration", "task_id", "group").n_unique() == 6
    assert trainer.shared.state.environment_steps == steps.height


def test_what_cannot_overlap_is_rejected():
    for changes, message in (
        ({}, "an engine with weights of its own"),
        ({"engine": "vllm", "sleep": True}, "rollout.sleep = false"),
        ({"engine": "vllm"}, 'update.rollout_is = "token"'),
    ):
        with refused(message):
            replace(Config(), rollout={"ahead": True, **changes})
