"""Targets that read texts: prompt templates, settings, metrics, replies of servers."""

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import Target

BRACES = (
    *(
        b"{{ ",
        b" }}",
        b"{# ",
        b"{% raw %}",
        b"{% for i in range(10**9) %}",
        b"{% endfor %}",
        b"{% include 'x' %}",
    ),
    *(
        b"{% macro m(a) %}",
        b"{% endmacro %}",
        b"{% import 'os' as o %}",
        b"{{ self }}",
        b"{{ cycler }}",
        b".__class__",
    ),
    *(
        b"{{ 'x' * 10**9 }}",
        b"{{ 1/0 }}",
        b"{{ 9**9**9 }}",
        b"{{ task.format(task) }}",
        b"{{ pairs[0] }}",
    ),
    *(
        b"| join",
        b"| listed",
        b"| tojson",
        b"| round(9)",
        b"| center(10**9)",
        b"| random",
    ),
)
VERL_AGENT = b"""
ALFWORLD_TEMPLATE_NO_HIS = '{current_observation} [{admissible_actions}]'
ALFWORLD_TEMPLATE = '{task_description} {step_count} {history_length} {action_history} {current_step}'
"""


def fill_verl_agent(data: bytes, folder: Path) -> None:
    from hgpo_envs.memory import Pair
    from hgpo_envs.prompts import load_template

    path = folder / "agent_system" / "environments" / "prompts" / "alfworld.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    template = load_template(f"verl-agent:{folder}", "ALFWorld")
    for steps in range(2):
        fields = {
            "task": "put a mug on a desk",
            "observation": "a room",
            "admissible_actions": ["look", "help"],
        }
        fields |= {"pairs": [Pair(1, "a room", "look")][:steps], "steps_taken": steps}
        shown = template.render(max_steps=50, action_format="response", **fields)
        assert isinstance(shown, str)
        assert len(shown) < 1 << 25


def read_settings(data: bytes, folder: Path) -> None:
    from dataclasses import asdict

    from hgpo_train.settings import to_toml
    from hgpo_train.training.config import load_config

    path = folder / "c.toml"
    path.write_bytes(data)
    config = load_config(path)
    again = folder / "again.toml"
    again.write_text(to_toml(config), encoding="utf-8")
    assert repr(asdict(load_config(again))) == repr(asdict(config))


def settings_seeds(_: Path) -> Sequence[bytes]:
    from hgpo_train.training.config import SHIPPED

    environment = b'name = "x"\niterations = 3\n[environment]\nid = "HGPO/ALFWorld-v0"\n[environment.options]\nx = 1\n'
    advantage = (
        b"[advantage]\nestimator = 'hgpo'\n[advantage.parameters]\nalpha = 1.0\n"
    )
    engine = b"[rollout.engine_options]\na = [1]\n"
    return [
        *(
            path.read_bytes()
            for name, path in SHIPPED.items()
            if name.startswith("tiny")
        ),
        environment,
        advantage + engine,
    ]


LINES = b'{"iteration": 0, "val/success_rate": 0.5}\n{"iteration": 1, "loss": null}\n'


def read_lines(data: bytes, folder: Path) -> None:
    from hgpo_train.training.config import SftConfig, replace
    from hgpo_train.training.tracking import Trackers, read_metrics

    path = folder / "metrics.jsonl"
    path.write_bytes(data)
    for line in read_metrics(path):
        assert isinstance(line["iteration"], int)
    Trackers(replace(SftConfig(), tracking={"tensorboard": False}), folder, 2).log(
        {"x": 1.0}, 2
    )


REPLY = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "<action>look</action>"},
            "finish_reason": "stop",
            "token_ids": [5, 6],
            "logprobs": {
                "content": [{"token": "a", "logprob": -0.5, "top_logprobs": []}] * 2
            },
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
}


@cache
def served() -> Any:
    """Return a policy whose client receives `answer` instead of asking a server, and an environment for it."""
    from hgpo_train.policies.server import ServerOptions, ServerPolicy
    from hgpo_train.rollout.env_handle import open_env

    class Asked:
        answer = b""
        handle = open_env("doors_env:HGPO-Test/Doors-v0", max_steps=2)
        policy = ServerPolicy(
            "m", ServerOptions(token_ids=True, logprobs=True, retries=0)
        )

        async def request(
            self, method: str, url: object, read: Callable[[bytes], Any], body: bytes
        ) -> Any:
            return read(self.answer)

    asked = Asked()
    asked.policy._client.request = asked.request
    return asked


def answer(data: bytes, folder: Path) -> None:
    """Collect rollouts with an arbitrary reply; each is in the run, either complete or aborted with a reason."""
    from hgpo_datasets import StepWriter, scan_steps, verify
    from hgpo_train.rollout.failures import RolloutError
    from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
    from hgpo_train.rollout.run import collect_groups

    server = served()
    spec = RolloutSpec(tasks=1, group_size=2)
    server.answer = data
    with (
        StepWriter(folder / "run", run="r") as writer,
        contextlib.suppress(RolloutError),
    ):
        collect_groups(
            server.handle, server.policy, writer, spec, ExecutionOptions(slots=2)
        )
    report = verify(folder / "run")
    assert report.ok, report.problems[0]
    rows = scan_steps(folder / "run").select("trajectory", "aborted", "error").collect()
    assert rows["trajectory"].n_unique() == 2
    reasons = rows.filter("aborted")["error"]
    assert all(reason and "\n" not in reason for reason in reasons)


CARD = {
    "format": "hgpo card 1", "question": None, "iteration": 3, "head": {}, "name": "run", "title": "A run.",
    "notes": ["Iteration 3."], "settings": {"seeds": [1, 2], "policy": {"name": "random"}}, "reporting_rule": "last",
    "rules": {"last": {"success": 0.5, "low": 0.1, "high": None, "episodes": 4}}, "spread": {}, "measures": {},
    "by_seed": {"3": {"success": 0.5, "low": 0.1, "high": 0.9}}, "rollouts": {"training": {"planned": 4}},
    "tasks": ["a"], "files": {"config.toml": "00"}, "commands": ["verify RUN"], "open": [],
}  # fmt: skip


def check_card(data: bytes, folder: Path) -> None:
    """Compare an arbitrary card with one: what has no differences is that card, whatever its author gave."""
    from hgpo_train.evaluation.card_page import card_page, card_problems, read_card

    path = folder / "card"
    path.write_bytes(data)
    found, given = read_card(path)
    card = {**CARD, "question": given.question, "iteration": given.iteration}
    problems = card_problems(card, found)
    assert all("\n" not in problem for problem in problems)
    if not problems and isinstance(found, str):
        compared = (
            card_page(card).partition("---\n\n")[2].partition("\n## Not known")[0]
        )
        assert set(compared.split()) <= set(found.split())


def card_seeds(_: Path) -> Sequence[bytes]:
    from hgpo_train.evaluation.card_page import card_page

    return [card_page(CARD).encode(), json.dumps(CARD).encode()]


def plain(*seeds: bytes) -> Any:
    return lambda _: seeds


REPLY_WORDS = (b'"logprob"', b'"token_ids"', b'"content"', b'"finish_reason"')

TARGETS = (
    Target("prompts of verl-agent", plain(VERL_AGENT), fill_verl_agent, 200, BRACES),
    Target(
        "configurations",
        settings_seeds,
        read_settings,
        100,
        (b"= ", b"\n[", b"inf", b"nan", b"1979-05-27"),
    ),
    Target("metrics", plain(LINES, LINES * 3), read_lines, 100),
    Target(
        "cards",
        card_seeds,
        check_card,
        100,
        (b"## Not known\n", b"---\n", b" -->", b"<!-- ", b"null"),
    ),
    Target(
        "rollouts with a server",
        plain(json.dumps(REPLY).encode()),
        answer,
        30,
        REPLY_WORDS,
    ),
)
