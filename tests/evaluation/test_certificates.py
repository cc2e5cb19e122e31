"""Certificates: what they contain, when a run has one, and which may be compared."""

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from refusals import refused

from hgpo_datasets import scan_steps
from hgpo_envs.files.sealed import is_sealed
from hgpo_train.evaluation import episode_table, evaluate_panel, evaluation_reports
from hgpo_train.evaluation.certificate import (
    NAME,
    as_table,
)
from hgpo_train.evaluation.certificate_check import (
    check_certificate,
    read_certificate,
    read_comparable,
)
from hgpo_train.panels import load_panel
from hgpo_train.settings import to_toml
from hgpo_train.view.encoding import encode
from hgpo_train.view.overview import overview_document
from hgpo_train.view.sources import open_sources

Document = dict[str, Any]


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
    with refused(line):
        read_certificate(tmp_path / "file.json")


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
    with refused(
        r"temperature: panel small@1 fixes it at 0.4;.*small@1\+temperature=1"
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
    with refused(
        r"another panel, small@1: environment\.max_steps is 4 there and 9 here; temp"
    ):
        read_comparable(played, hot)


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
    with refused(
        "tasks: 3 there, 1 here, 1 in both; name is 'small' there and 'one' here"
    ):
        read_comparable(played / NAME, one)
