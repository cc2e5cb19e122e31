"""Notes on rollouts: kept beside the run, refused from other sites' pages and where they are no notes."""

import shutil

import polars as pl
import pytest
from viewed_app import TOKEN, client_of

from hgpo_datasets import scan_steps, verify


def save(client, origin="http://127.0.0.1:8000", **note):
    return client.post(
        f"/{TOKEN}/api/runs/0/notes", json=note, headers={"origin": origin}
    )


def test_a_note_is_kept_beside_the_run(small_run):
    client = client_of(small_run)
    (before,) = client.get(f"/{TOKEN}/api/versions").json()
    for name, score, text in (
        ("x", 1.5, "<b>loops</b>"),
        ("w", None, "fine"),
        ("x", 2.0, "loops\n\u202e"),
    ):
        save(
            client, trajectory=f"alpha/0/{name}", score=score, note=text
        ).raise_for_status()
    assert client.get(f"/{TOKEN}/api/versions").json() != [before]
    notes = client.get(f"/{TOKEN}/api/runs/0/notes").json()
    assert [(note["trajectory"], note["score"], note["note"]) for note in notes] == [
        ("alpha/0/w", None, "fine"),
        ("alpha/0/x", 2.0, "loops\n\u202e"),
    ]
    assert verify(small_run).ok
    joined = scan_steps(small_run).join(
        pl.scan_ndjson(small_run / "notes.jsonl"), on=["run", "trajectory"]
    )
    assert joined.select(pl.col("note").n_unique(), pl.len()).collect().row(0) == (2, 6)
    for name in "wx":
        save(client, trajectory=f"alpha/0/{name}").raise_for_status()
    assert (small_run / "notes.jsonl").read_bytes() == b""


def test_equal_names_of_rollouts_in_two_runs_have_notes_of_their_own(
    small_run, tmp_path
):
    """A name is unique in its run, and every run has its file."""
    other = shutil.copytree(small_run, tmp_path / "other")
    client = client_of(small_run, other)
    for run, text in enumerate(["of the first", "of the second"]):
        client.post(
            f"/{TOKEN}/api/runs/{run}/notes",
            json={"trajectory": "alpha/0/w", "note": text},
            headers={"origin": "http://127.0.0.1:8000"},
        ).raise_for_status()
    for run, text in enumerate(["of the first", "of the second"]):
        (note,) = client.get(f"/{TOKEN}/api/runs/{run}/notes").json()
        assert note["note"] == text
    client.close()


@pytest.mark.parametrize(
    ("note", "line"),
    [
        ({"trajectory": "nobody"}, "no trajectory 'nobody'"),
        ({"note": "of nothing"}, "missing required field `trajectory`"),
        ({"trajectory": "alpha/0/w", "score": "much"}, "Expected `float | null`"),
        ({"trajectory": "alpha/0/w", "note": "x" * 10_001}, "length <= 10000"),
        ({"trajectory": "alpha/0/w", "note": "x" * 200_000}, "at most 131,072 bytes"),
        ({"trajectory": "alpha/0/w", "path": "/etc"}, "unknown field `path`"),
    ],
)
def test_what_is_no_note_is_refused(small_run, note, line):
    answer = save(client_of(small_run), **note)
    assert (answer.status_code, line in answer.json()["error"]) == (400, True), (
        answer.text
    )
    assert not (small_run / "notes.jsonl").exists()


@pytest.mark.parametrize(
    "origin",
    ["", "null", "http://evil.example", "http://127.0.0.1:8001", "http://127.0.0.1"],
)
def test_another_sites_page_saves_no_note(small_run, origin):
    assert (
        save(
            client_of(small_run), origin, trajectory="alpha/0/w", note="theirs"
        ).status_code
        == 403
    )
    assert not (small_run / "notes.jsonl").exists()


def test_damaged_notes_are_kept_and_say_so(small_run):
    client = client_of(small_run)
    (small_run / "notes.jsonl").write_text('{"trajectory": "alpha/0/w"}\n{"traj')
    for answer in (
        client.get(f"/{TOKEN}/api/runs/0/notes"),
        save(client, trajectory="alpha/0/x", note="new"),
    ):
        assert answer.status_code == 400
        assert "line 2 is no note" in answer.json()["error"]
    assert client.get(f"/{TOKEN}/api/runs/0/rollouts").status_code == 200
