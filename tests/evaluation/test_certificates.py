"""Certificates: whatever is changed is found and named, and episodes are the same however they are played."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_datasets import manifest, scan_steps
from hgpo_envs.alfworld.data.game_folder import write_folder
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.errors import InputError
from hgpo_envs.files.sealed import is_sealed, seal
from hgpo_train.evaluation import episode_table, evaluate_panel, evaluation_reports
from hgpo_train.evaluation.certificate import (
    NAME,
    as_table,
    certificate,
    figures,
    write_certificate,
)
from hgpo_train.evaluation.certificate_check import (
    _wrong_settings,
    check_certificate,
    read_certificate,
    read_comparable,
)
from hgpo_train.evaluation.json_difference import differences
from hgpo_train.panels import Panel, load_panel
from hgpo_train.panels.data import task_checksum
from hgpo_train.policies.base import Failure, Request
from hgpo_train.rollout import collect
from hgpo_train.settings import to_toml
from hgpo_train.view.encoding import encode
from hgpo_train.view.overview import overview_document
from hgpo_train.view.sources import open_sources

Document = dict[str, Any]


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


def changed(played: Path, tmp_path: Path, change: Callable[[Document], object]) -> Path:
    """Return a changed certificate, whose own check is right again."""
    document = json.loads((played / "certificate.json").read_bytes())
    change(document)
    del document["check"]
    path = tmp_path / "certificate.json"
    path.write_bytes(seal(json.dumps(document, indent=1).encode()))
    return path


def test_a_certificate_contains_every_outcome_and_the_same_figures_as_the_run(
    played, small
):
    document = json.loads((played / "certificate.json").read_bytes())
    assert is_sealed((played / "certificate.json").read_bytes())
    assert [(each["seed"], each["task_id"]) for each in document["episodes"]] == [
        (seed, task_id) for seed in (1, 2) for task_id in small.tasks
    ]
    assert document["counts"] == {"played": 6, "won": 0, "aborted": 2, "truncated": 4}
    # a failed step is one, too
    assert document["cost"]["environment_steps"] == 4 * 4 + 2 * 2
    success = document["success_by_rule"]
    assert [
        success[rule]["success"]
        for rule in ("aborted lost", "aborted won", "limit won")
    ] == [
        0.0,
        1 / 3,
        1.0,
    ]
    of_run = evaluation_reports(episode_table(scan_steps(played)))[0]
    stated = document["results"][0]["success"]
    assert stated["rollouts"] == of_run.success.rollouts == 6
    assert stated["interval"] == list(of_run.success.interval)
    (source,) = open_sources([str(played)])
    viewed = json.loads(encode(overview_document(source, source.index())))["total"]
    assert viewed["intervals"]["success"] == stated["interval"]
    assert viewed["bounds"] == [stated["if_aborted_lost"], stated["if_aborted_won"]]


def test_an_untouched_certificate_has_no_difference(check, played):
    result = check(played / "certificate.json", played, replay=9)
    assert (result.problems, result.notes, result.replayed) == ([], [], 4)
    # anybody can write a panel
    (problem,) = check_certificate(played / "certificate.json").problems
    assert problem.startswith("panel: not known here (unknown panel 'small@1'")


def test_code_that_an_unknown_panel_names_is_not_run(played, tmp_path, monkeypatch):
    (tmp_path / "strangers_code.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    path = changed(played, tmp_path, with_settings(env="strangers_code:SPEC"))
    result = check_certificate(path, played, replay=1)
    assert any(
        problem.startswith("panel: not known here") for problem in result.problems
    )
    assert result.replayed == 0


def at(path: str, **values: object) -> Callable[[Document], object]:
    """Return a function that changes values of the table at a path of a document."""

    def change(document: Document) -> None:
        for name in path.split("."):
            document = document[int(name) if name.isdigit() else name]
        document.update(values)

    return change


def relabel(**values: object) -> Callable[[Document], object]:
    """Return a function that changes the first episode, with figures to match."""

    def change(document: Document) -> None:
        document["episodes"][0] |= values
        document |= figures(document["episodes"], "HGPO/ALFWorld-v0")

    return change


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def drop_the_failed(document: Document) -> None:
    document["episodes"] = [
        episode for episode in document["episodes"] if not episode["aborted"]
    ]
    document |= figures(document["episodes"], "HGPO/ALFWorld-v0")
    document["cost"]["environment_steps"] = 16


def with_settings(**settings: object) -> Callable[[Document], object]:
    """Return a function that changes settings of the panel, and its digest to match."""

    def change(document: Document) -> None:
        values = document["panel"]["settings"]
        for name, value in settings.items():
            (values["environment"] if name in values["environment"] else values)[
                name
            ] = value
        document["panel"]["digest"] = Panel(**values).digest

    return change


OF_THE_FILE: dict[str, tuple[Callable[[Document], object], str]] = {
    "a figure": (
        at("results.0.success", share=0.5),
        "results[0].success.share: expected 0.0, found 0.5",
    ),
    "an interval": (
        at("success_by_rule.aborted lost", high=0.1),
        "success_by_rule.aborted lost.high: expected ",
    ),
    "the number of failures": (
        at("counts", aborted=0),
        "counts.aborted: expected 2, found 0",
    ),
    "failed episodes are dropped": (
        drop_the_failed,
        "episodes: seed 1, valid_unseen/look_at_obj_in_light-Box",
    ),
    "an episode twice": (
        lambda document: document["episodes"].append(document["episodes"][0]),
        "occurs 2 times",
    ),
    "a task is swapped": (
        at("episodes.0", task_id="valid_unseen/another/trial"),
        "episodes: seed 1, valid_unseen/another/trial is not of the panel",
    ),
    "the order": (
        lambda document: document["episodes"].reverse(),
        "their order is not the panel's",
    ),
    "the split": (
        with_settings(split="valid_seen"),
        "panel.settings.environment.split: expected 'valid_unseen', found 'valid_seen'",
    ),
    "another panel of this name": (
        with_settings(temperature=1.0),
        "panel.settings.temperature: expected 0.4, found 1.0",
    ),
    "the digest": (at("panel", digest="0" * 64), "panel.digest: expected"),
    "the title": (at("panel", title="alfworld-unseen@1"), "panel.title: expected"),
    "the data": (at("data", tasks="0" * 64), "data.tasks: expected "),
    "that data are not pinned": (
        at("data", pinned=False),
        "data.pinned: expected True",
    ),
    "more steps than the limit": (
        at("episodes.0", length=5.0),
        "episodes: expected at most 4 steps, found 5",
    ),
    "the steps": (
        at("cost", environment_steps=1),
        "cost.environment_steps: expected 20, found 1",
    ),
}


@pytest.mark.parametrize("name", OF_THE_FILE)
def test_a_change_is_found_in_the_file_alone(check, played, tmp_path, name):
    change, line = OF_THE_FILE[name]
    path = changed(played, tmp_path, change)
    result = check(path)
    assert any(line in problem for problem in result.problems), result.problems
    assert all("\n" not in problem for problem in result.problems)


OF_THE_RUN: dict[str, tuple[Callable[[Document], object], str]] = {
    "an outcome": (
        relabel(won=True, score=1.0),
        "episodes.seed 1, {task}.won: expected False, found True",
    ),
    "a trajectory": (
        at("episodes.0", trajectory="0" * 64),
        "episodes.seed 1, {task}.trajectory: expected ",
    ),
    "the policy": (at("policy", name="better"), "policy.name: expected "),
    "the time": (at("cost", wall_s=0.0), "cost.wall_s: expected "),
    "a failure": (
        relabel(aborted=True),
        "episodes.seed 1, {task}.aborted: expected False, found True",
    ),
    "a task type": (
        relabel(task_type="easy"),
        "episodes.seed 1, {task}.task_type: expected 'look_at_obj_in_light', found 'easy'",
    ),
}


@pytest.mark.parametrize("name", OF_THE_RUN)
def test_a_change_with_figures_to_match_is_found_with_the_run(
    check, played, tmp_path, name
):
    change, line = OF_THE_RUN[name]
    path = changed(played, tmp_path, change)
    assert check(path).problems == []
    problems = check(path, played).problems
    task = read_certificate(path).episodes[0]["task_id"]
    assert any(problem.startswith(line.format(task=task)) for problem in problems), (
        problems
    )


def test_a_changed_byte_is_found(played, tmp_path, hgpo):
    data = (played / "certificate.json").read_bytes()
    (tmp_path / "certificate.json").write_bytes(
        data.replace(b'"processors"', b'"processorz"')
    )
    code, out, _ = hgpo("certificate", "check", tmp_path / "certificate.json")
    assert (code, out.splitlines()[0]) == (
        1,
        "check: the file was changed after it was written",
    )


def claimed(panel: Panel, folder: Path, **others: Any) -> None:
    """Play other things than a panel into a run that claims to be of it."""
    claim = {
        "panel": {"title": panel.title, "digest": panel.digest, "tasks": panel.checksum}
    }
    arguments = (
        panel.environment
        | {"tasks": panel.tasks, "seed": panel.seeds, "order": "sweep"}
        | others
    )
    arguments = {"group_size": 1} | arguments
    collect(policy="random", out=folder, metadata=claim, progress=False, **arguments)


def test_a_run_of_another_environment_that_claims_the_panel_is_found_by_a_replay(
    check, small, tmp_path
):
    claimed(small, tmp_path, grammar="put")
    write_certificate(tmp_path, small)
    result = check(tmp_path / NAME, tmp_path, replay=6)
    assert result.replayed == 6
    first, *replayed = result.problems
    assert first == f"settings of {tmp_path}.grammar: expected 'move', found 'put'"
    assert all(problem.startswith("replay of seed ") for problem in replayed)
    assert len({problem.partition(", step")[0] for problem in replayed}) == 6


def test_settings_that_a_replay_cannot_see_are_compared_with_the_manifest(
    check, small, tmp_path
):
    claimed(small, tmp_path, history_length=1)
    write_certificate(tmp_path, small)
    result = check(tmp_path / NAME, tmp_path, replay=6)
    assert result.problems == [
        f"settings of {tmp_path}.history_length: expected 2, found 1"
    ]


def test_a_run_that_played_tasks_several_times_has_no_certificate(small, tmp_path):
    claimed(small, tmp_path, group_size=2)
    with pytest.raises(
        InputError,
        match=r"expected 6 episodes .* one per task and seed, found 12; 0 are missing",
    ):
        write_certificate(tmp_path, small)


def rewritten(
    check: Callable[..., Any],
    played: Path,
    folder: Path,
    small: Panel,
    change: Callable[[pl.DataFrame], pl.DataFrame],
) -> list[str]:
    """Rewrite the table of a run with its manifest and certificate, and return what the check with a replay finds."""
    shutil.copytree(played, folder)
    listed = manifest.read(folder)
    assert listed.header is not None
    lines, chain = manifest.encode_line(listed.header, "")
    for shard in listed.shards.values():
        path = folder / "steps" / shard.file
        table = change(pl.read_parquet(path))
        table.write_parquet(path, metadata=pl.read_parquet_metadata(path))
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        forged = msgspec.structs.replace(
            shard, rows=len(table), bytes=len(content), sha256=digest
        )
        line, chain = manifest.encode_line(forged, chain)
        lines += line
    (folder / "manifest.jsonl").write_bytes(lines)
    write_certificate(folder, small)
    return check(folder / NAME, folder, replay=9).problems


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda table: table.filter(pl.col("step") < 3),
            "expected an episode that ends",
        ),
        (lambda table: table.filter(pl.col("step") > 0), "step 1.state: expected "),
        (
            lambda table: table.with_columns(action=pl.lit(None, pl.String)),
            "step 0: found no action",
        ),
        (
            lambda table: table.with_columns(reward=pl.col("reward") + 1),
            "step 0.reward: expected ",
        ),
        (lambda table: table.with_columns(aborted=False), "found no action"),
    ],
)
def test_a_table_that_was_rewritten_with_its_manifest_is_found_by_a_replay(
    check, played, small, tmp_path, change, line
):
    problems = rewritten(check, played, tmp_path / "run", small, change)
    assert any(
        problem.startswith("replay of ") and line in problem for problem in problems
    ), problems


def test_what_is_changed_in_the_panel_is_named_with_the_run_too(
    check, played, tmp_path
):
    path = changed(played, tmp_path, with_settings(temperature=1.0))
    problems = check(path, played, replay=1).problems
    assert "panel.settings.temperature: expected 0.4, found 1.0" in problems
    assert "expected a run of panel small@1" in problems[-1]


def test_a_temperature_of_the_manifest_that_is_not_the_panels_is_named(
    played, small, tmp_path
):
    listed = manifest.read(played)
    assert listed.header is not None
    config = dict(listed.header.config) | {
        "policy": {"name": "a model", "temperature": 1.0}
    }
    header = msgspec.structs.replace(listed.header, config=config)
    (tmp_path / "manifest.jsonl").write_bytes(manifest.encode_line(header, "")[0])
    assert _wrong_settings(tmp_path, small) == [
        f"settings of {tmp_path}.temperature: expected 0.4, found 1.0"
    ]


def test_a_swapped_task_is_named_with_a_replay_too(check, played, tmp_path):
    path = changed(played, tmp_path, at("episodes.0", task_id="valid_unseen/x/trial"))
    result = check(path, played, replay=9)
    assert (
        "episodes: seed 1, valid_unseen/x/trial is not of the panel" in result.problems
    )
    assert result.replayed == 3


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "is no certificate"),
        (b"[1]", "is no certificate"),
        (b'{"format": "hgpo certificate 9"}', "is no certificate"),
        (b"[" * 100_000, "is no certificate"),
    ],
)
def test_other_files_are_no_certificates(tmp_path, data, line):
    (tmp_path / "file.json").write_bytes(data)
    with pytest.raises(InputError, match=line):
        read_certificate(tmp_path / "file.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["episodes"][0].pop("won"),
        at("episodes.0", seed="x"),
        lambda document: [
            episode.update(length=1e308) for episode in document["episodes"]
        ],
        at("episodes.0", length=-1.0),
        at("data", x=nested(900)),
        at("panel.settings.environment", x=nested(900)),
        at("episodes.0", length=3.5),
        at("episodes.0", invalid=9),
        at("episodes.0", judged=1, admissible=2),
        at("episodes.0", seed=2**70),
        at("episodes.0", aborted=None),
        lambda document: document["panel"]["settings"].pop("tasks"),
        at("panel.settings", environment=3),
        lambda document: document.update(episodes=3),
        lambda document: document.update(more=3),
    ],
)
def test_a_value_of_the_wrong_type_is_one_line(played, tmp_path, change):
    with pytest.raises(InputError, match=NAME) as error:
        check_certificate(changed(played, tmp_path, change))
    assert "\n" not in str(error.value)


def test_an_incomplete_run_and_one_of_another_panel_have_no_certificate(
    played, small, tmp_path
):
    claimed(small, tmp_path, tasks=small.tasks[:2])
    with pytest.raises(
        InputError, match="one per task and seed, found 4; 2 are missing"
    ):
        certificate(tmp_path, small)
    with pytest.raises(
        InputError, match=r"panel alfworld-seen@1 with digest .*, found small@1"
    ):
        certificate(played, load_panel("alfworld-seen@1"))


def test_an_interrupted_panel_has_a_certificate_only_once_it_is_resumed(
    check, small, tmp_path
):
    asked = []

    def interrupted(request):
        asked.append(request)
        if len(asked) == 6:
            raise KeyboardInterrupt
        return request.state.actions[0]

    for expected in (pytest.raises(KeyboardInterrupt), nullcontext()):
        with expected:
            evaluate_panel(small, interrupted, tmp_path, progress=False, slots=1)
        assert (tmp_path / NAME).exists() == (len(asked) > 6)
    assert check(tmp_path / NAME, tmp_path, replay=6).problems == []


def test_options_that_the_panel_fixes_are_refused(tmp_path, hgpo):
    common = (
        "eval",
        "--panel",
        "alfworld-bundled",
        "--policy",
        "random",
        "--out",
        tmp_path / "run",
    )
    for option, advice in (
        (("--max-steps", 9), "write --panel 'alfworld-bundled+max_steps=9'"),
        (("--seeds", "1,2"), "write --panel 'alfworld-bundled+seeds=[1,2]'"),
        (
            ("--seeds", "123,456,789"),
            "write --panel 'alfworld-bundled+seeds=[123,456,789]'",
        ),
        (("--env", "HGPO/WebShop-v0"), "leave it out"),
        # also the command's default, if it is given
        (("--env", "HGPO/ALFWorld-v0"), "leave it out"),
    ):
        code, _, error = hgpo(*common, *option)
        assert (code, error.count("\n")) == (2, 1)
        assert f"{option[0]}: the panel alfworld-bundled@1 fixes it" in error
        assert advice in error
    with pytest.raises(
        InputError,
        match=r"temperature: panel small@1 fixes it at 0.4;.*small@1\+temperature=1",
    ):
        evaluate_panel(
            replace(load_panel("alfworld-bundled"), name="small"),
            "openai:model",
            tmp_path / "run",
            policy_options={"temperature": 1},
        )
    assert not (tmp_path / "run").exists()


def test_certificates_are_compared_only_within_a_panel(played, small):
    table = read_comparable(played, small).table()
    assert table.equals(
        as_table(
            read_certificate(played / "certificate.json").episodes, "HGPO/ALFWorld-v0"
        )
    )
    hot = small.with_overrides({"temperature": 0.7, "max_steps": 9})
    with pytest.raises(
        InputError,
        match=r"another panel, small@1: environment\.max_steps is 4 there and 9 here; temp",
    ):
        read_comparable(played, hot)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(JSON, JSON)
def test_documents_differ_exactly_if_they_are_not_equal(first, second):
    assert list(differences(first, first)) == []
    if not list(differences(first, second)):
        assert (
            first == pytest.approx(second, rel=1e-8, abs=1e-8)
            if isinstance(first, float)
            else True
        )
        assert type(first) is type(second) or {type(first), type(second)} == {
            int,
            float,
        }
    assert bool(list(differences(first, second))) == bool(
        list(differences(second, first))
    )


def episodes_of(panel: str | Panel, folder: Path, **options: Any) -> list[Document]:
    run = evaluate_panel(panel, "random", folder, progress=False, **options)
    return json.loads((run.path / "certificate.json").read_bytes())["episodes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "panel", ["alfworld-bundled@1+max_steps=12", "webshop-bundled@1"]
)
def test_episodes_are_the_same_however_they_are_played(panel, tmp_path):
    expected = episodes_of(panel, tmp_path / "256")
    assert len(expected) == 36
    assert len({episode["trajectory"] for episode in expected}) > 12  # seeds differ
    assert episodes_of(panel, tmp_path / "1", slots=1) == expected
    assert episodes_of(panel, tmp_path / "workers", workers=True, slots=2) == expected


@pytest.mark.slow
def test_episodes_do_not_depend_on_the_order_of_a_folder(tmp_path):
    panel = load_panel("alfworld-bundled@1+max_steps=12")
    source = ALFWorldSource()
    for name, ids in (
        ("a", source.ids("valid_unseen")),
        ("b", sorted(source.ids("all"), key=lambda each: each[::-1])),
    ):
        write_folder(source, ids, tmp_path / name)
    bundled = episodes_of(panel, tmp_path / "run")
    assert episodes_of(panel, tmp_path / "run a", data=tmp_path / "a") == bundled
    assert episodes_of(panel, tmp_path / "run b", data=tmp_path / "b") == bundled


KILLED = """
import os, signal, sys
from hgpo_train.evaluation import evaluate_panel
def kill(tally):
    if tally.trajectories > 14:  # the first seed is committed
        os.kill(os.getpid(), signal.SIGKILL)
evaluate_panel(sys.argv[1], "random", sys.argv[2], slots=3, progress=kill)
"""


@pytest.mark.slow
def test_a_killed_and_resumed_run_has_the_same_episodes(tmp_path):
    panel = "alfworld-bundled@1+max_steps=12"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, panel, tmp_path / "killed"], env=os.environ
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "certificate.json").exists()
    assert scan_steps(tmp_path / "killed").collect()[
        "iteration"
    ].unique().to_list() == [123]
    assert episodes_of(panel, tmp_path / "killed") == episodes_of(
        panel, tmp_path / "whole"
    )


def test_one_task_type_is_one_row_and_lists_of_another_panel_are_counted(
    played, small, tmp_path, hgpo
):
    one = replace(small, name="one", tasks=small.tasks[:1], checksum="")
    (tmp_path / "one.toml").write_text(to_toml(one), "utf-8")
    code, out, _ = hgpo(
        "eval",
        "--panel",
        tmp_path / "one.toml",
        "--policy",
        "random",
        "--out",
        tmp_path / "run",
    )
    rows = [line for line in out.splitlines() if "0.0 ±0.0" in line]
    assert code == 0
    assert [row.split()[0] for row in rows] == ["look_at_obj_in_light"]
    with pytest.raises(
        InputError,
        match="tasks: 3 there, 1 here, 1 in both; name is 'small' there and 'one' here",
    ):
        read_comparable(played / NAME, one)
