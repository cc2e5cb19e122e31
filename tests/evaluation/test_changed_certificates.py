"""Whatever is changed in a certificate, its run or its panel is found and named."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from hgpo_datasets import manifest
from hgpo_envs.files.sealed import seal
from hgpo_train.evaluation import evaluate_panel
from hgpo_train.evaluation.certificate import (
    NAME,
    certificate,
    figures,
    write_certificate,
)
from hgpo_train.evaluation.certificate_check import (
    _wrong_settings,
    check_certificate,
    read_certificate,
)
from hgpo_train.evaluation.json_difference import differences
from hgpo_train.panels import Panel, load_panel
from hgpo_train.rollout import collect
from hgpo_train.settings import to_toml

Document = dict[str, Any]


def changed(played, tmp_path, change):
    """Return a changed certificate, whose own check is right again."""
    document = json.loads((played / "certificate.json").read_bytes())
    change(document)
    del document["check"]
    path = tmp_path / "certificate.json"
    path.write_bytes(seal(json.dumps(document, indent=1).encode()))
    return path


def test_code_that_an_unknown_panel_names_is_not_run(played, tmp_path, monkeypatch):
    (tmp_path / "strangers_code.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    path = changed(played, tmp_path, with_settings(env="strangers_code:SPEC"))
    result = check_certificate(path, played, replay=1)
    assert any(
        problem.startswith("panel: not known here") for problem in result.problems
    )
    assert result.replayed == 0


def at(path, **values):
    """Return a function that changes values of the table at a path of a document."""

    def change(document: Document) -> None:
        for name in path.split("."):
            document = document[int(name) if name.isdigit() else name]
        document.update(values)

    return change


def relabel(**values):
    """Return a function that changes the first episode, with figures to match."""

    def change(document: Document) -> None:
        document["episodes"][0] |= values
        document |= figures(document["episodes"], "HGPO/ALFWorld-v0")

    return change


def nested(depth):
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def drop_the_failed(document):
    document["episodes"] = [
        episode for episode in document["episodes"] if not episode["aborted"]
    ]
    document |= figures(document["episodes"], "HGPO/ALFWorld-v0")
    document["cost"]["environment_steps"] = 16


def with_settings(**settings):
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


@pytest.mark.slow
def test_a_run_that_is_another_one_is_called_so(small, played, tmp_path, hgpo):
    """Of the same panel with another policy, and of another panel; changed figures are no reason to say so."""
    file = tmp_path / "small.toml"
    file.write_text(to_toml(small), "utf-8")
    shorter = replace(small, environment=small.environment | {"max_steps": 3})
    for panel, name in ((small, "same"), (shorter, "shorter")):
        other = evaluate_panel(panel, "random", tmp_path / name, progress=False).path
        code, _, errors = hgpo(
            "certificate", "check", played, "--run", other, "--panel", file
        )
        assert code == 1
        assert f"{other} is not the run of {played / NAME}" in errors
    path = changed(played, tmp_path, at("cost", wall_s=0.0))
    *_, errors = hgpo("certificate", "check", path, "--run", played, "--panel", file)
    assert "is not what it should be (1 in all)" in errors


def claimed(panel, folder, **others):
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
    with refused(
        r"expected 6 episodes .* one per task and seed, found 12; 0 are missing"
    ):
        write_certificate(tmp_path, small)


def rewritten(check, played, folder, small, change):
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
    with refused(NAME):
        check_certificate(changed(played, tmp_path, change))


def test_an_incomplete_run_and_one_of_another_panel_have_no_certificate(
    played, small, tmp_path
):
    claimed(small, tmp_path, tasks=small.tasks[:2])
    with refused("one per task and seed, found 4; 2 are missing"):
        certificate(tmp_path, small)
    with refused(r"panel alfworld-seen@1 with digest .*, found small@1"):
        certificate(played, load_panel("alfworld-seen@1"))


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
