"""A training run on conversations, as a user starts it."""

import pytest

from hgpo_datasets import scan_steps
from hgpo_train.training.config import replace
from hgpo_train.training.tracking import read_metrics


@pytest.mark.slow
def test_conversations_train_on_shared_sequences_and_resume(config, runs):
    chat = replace(
        config, environment={"prompt_style": "chat", "system_prompt": "Be brief."}, rollout={"max_prompt_tokens": 2000}
    )
    runs.train(chat, "whole")
    runs.train(replace(chat, iterations=1), "parts")
    runs.train(chat, "parts", resume=True)
    assert runs.weights("parts") == runs.weights("whole")
    metrics = list(read_metrics(runs.folder / "whole" / "metrics.jsonl"))
    assert all(line["perf/shared_tokens"] > 0.3 for line in metrics if "perf/shared_tokens" in line)
    steps = scan_steps(runs.folder / "whole").sort("trajectory", "step").collect()
    for _, trajectory in steps.group_by("iteration", "trajectory"):
        before: list[int] = []
        for prompt, response in trajectory.sort("step").select("prompt_token_ids", "response_token_ids").rows():
            assert prompt[: len(before)] == before
            before = prompt + response
