"""A small panel, a run of it, and the check of its certificate."""

from dataclasses import replace
from functools import partial

import pytest

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_train.evaluation import evaluate_panel
from hgpo_train.evaluation.certificate_check import (
    check_certificate,
)
from hgpo_train.panels import load_panel
from hgpo_train.panels.data import task_checksum
from hgpo_train.policies.base import Failure, Request
from hgpo_train.settings import to_toml


@pytest.fixture(scope="module")
def small():
    """Return a panel of three bundled games, two seeds and four steps."""
    panel = load_panel("alfworld-bundled@1")
    tasks = panel.tasks[:3]
    environment = panel.environment | {"max_steps": 4}
    checksum = task_checksum(ALFWorldSource(grammar="move"), tasks)
    return replace(
        panel,
        name="small",
        tasks=tasks,
        seeds=(1, 2),
        environment=environment,
        checksum=checksum,
    )


def first_or_fail(request: Request) -> str | Failure:
    """Take the first action; fail at the second step of one game."""
    if request.step and "Box" in request.task.id:
        return Failure("Broken", "the server is down")
    return f"<think></think><action>{request.state.actions[0]}</action>"


@pytest.fixture(scope="module")
def played(small, tmp_path_factory):
    """Return a run of the panel, two of whose six episodes failed."""
    folder = tmp_path_factory.mktemp("certificates")
    return evaluate_panel(
        small, first_or_fail, folder / "run", max_failed=0.5, progress=False
    ).path


@pytest.fixture(scope="module")
def check(small, tmp_path_factory):
    """Return a function that checks a certificate of the panel, which is known by its file alone."""
    file = tmp_path_factory.mktemp("panels") / "small.toml"
    file.write_text(to_toml(small), "utf-8")
    return partial(check_certificate, panel=str(file))
