"""`hgpo view`: the page of a selection, and bad input."""

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from command import python
from groups import write_run
from refusals import refused
from viewed import HOSTILE, data_of

from hgpo_train.view.page import MB, STATIC, write_page
from hgpo_train.view.sources import open_sources


def test_a_page_contains_the_selection(rich_run, tmp_path):
    file = tmp_path / "page.html"
    done: list[tuple[int, int]] = []
    chosen = {"tasks": 2, "estimators": ("hgpo", "rloo")}
    written = write_page(
        open_sources([str(rich_run)]),
        file,
        progress=lambda *shown: done.append(shown),
        **chosen,
    )
    assert (written.tasks, written.left_out, written.bytes) == (
        2,
        0,
        file.stat().st_size,
    )
    assert done == [(1, 2), (2, 2)]
    answers = data_of(file)["answers"]
    assert [task["task_id"] for task in answers["runs/0/rollouts"]["tasks"]] == [
        "task 0",
        "task 1",
    ]
    rows = sum(answers["runs/0/rollouts"]["columns"]["length"])
    assert (
        sum(
            len(steps)
            for key, steps in answers.items()
            if key.startswith("runs/0/steps/")
        )
        == rows
    )
    assert answers["runs/0/groups/1/estimates/rloo"]["parameters"]["reward_scale"] == 10
    assert data_of(file)["opened"] == ["hgpo", "rloo"], "the pair that is shown first"
    # prompts repeat states, and are stored compressed
    code = sum((STATIC / name).stat().st_size for name in ("app.js", "app.css"))
    assert file.stat().st_size - code < len(json.dumps(data_of(file))) / 3


@pytest.mark.slow
def test_tasks_by_id(rich_run, tmp_path):
    file = tmp_path / "page.html"
    write_page(open_sources([str(rich_run)]), file, task_ids=("task 4",))
    assert [
        task["task_id"] for task in data_of(file)["answers"]["runs/0/rollouts"]["tasks"]
    ] == ["task 4"]
    with refused("unknown task 'task 9'; did you mean 'task "):
        write_page(open_sources([str(rich_run)]), file, task_ids=("task 9",))


@pytest.mark.slow
def test_the_size_is_limited(rich_run, tmp_path):
    sources = open_sources([str(rich_run)])
    file = tmp_path / "page.html"
    whole = write_page(sources, file, tasks=6).bytes
    written = write_page(sources, file, tasks=6, max_mb=(whole - 1000) / MB)
    assert written.left_out > 0
    assert written.tasks + written.left_out == 6
    assert written.bytes <= whole - 1000
    before = file.read_bytes()
    with refused("increase --max-mb"):
        write_page(sources, file, max_mb=150_000 / MB)
    assert file.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("column", ["trajectory", "state", "prompt"])
def test_a_damaged_run_does_not_spoil_the_page_of_others(
    rich_run, small_run, tmp_path, column
):
    shutil.copytree(small_run, tmp_path / "damaged")
    shard = tmp_path / "damaged" / "steps" / "steps-000000.parquet"
    group = parquet.read_metadata(shard).row_group(0)
    chunks = {
        chunk.path_in_schema: chunk
        for chunk in map(group.column, range(group.num_columns))
    }
    at = chunks[column].data_page_offset
    size = chunks[column].total_compressed_size
    data = shard.read_bytes()
    shard.write_bytes(data[:at] + bytes(size) + data[at + size :])
    page = write_page(
        open_sources([str(rich_run), str(tmp_path / "damaged")]), tmp_path / "page.html"
    )
    assert page.tasks >= 6
    assert page.left_out == 0
    (problem,) = page.problems
    assert re.fullmatch(r".*damaged: .*cannot be read: .*; left out", problem)


def test_the_policy_of_a_page_allows_its_own_script_alone(hostile_run, tmp_path):
    file = tmp_path / "page.html"
    write_page(open_sources([str(hostile_run)]), file)
    page = file.read_text()
    head, _, rest = page.partition('<script type="text/plain" id="data">')
    data, _, end = rest.partition("</script>")
    assert "<" not in data
    scripts = re.findall(r"<script>(.*?)</script>", end, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", head, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', head)
    assert policy.startswith("default-src 'none'; ")
    for kind, content in (("script", scripts[0]), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert len(scripts) == 1
    assert "connect-src" not in policy
    shown = json.dumps(data_of(file))
    for text in (HOSTILE["script"], HOSTILE["end of data"]):
        assert json.dumps(text)[1:-1] in shown


# ----------------------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_writes_a_page(hgpo, small_run, tmp_path):
    out = tmp_path / "new" / "page.html"
    code, text, _ = hgpo("view", small_run, "-o", out, "--tasks", 1)
    assert (code, text) == (0, f"{out}: 1 task, 0.2 MB. Open it in a browser.\n")
    several = tmp_path / "several"
    for name in ("one", "two"):
        shutil.copytree(small_run, several / name)
    text = hgpo("view", several, "-o", several / "page.html", "--tasks", 1)[1]
    assert f"Note: 2 runs are shown, each by itself: {several / 'one'}, " in text
    code, _, error = hgpo("view", small_run, "-o", out)
    assert (code, "exists already; replace it with --overwrite" in error) == (2, True)
    assert hgpo("view", small_run, "-o", out, "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "RUN is missing: Runs, folders of runs, Parquet files"),
        ("nowhere", "nowhere: no such file or run"),
        ("https://host/run", "expected a local run, received the URL https://host/run"),
        (". -o page.html", "is not a run, and contains none"),
        ("RUN -o .", "expected a file, received a folder"),
        (
            "RUN -o page.html --tasks 0",
            "--tasks: expected a positive number, received 0",
        ),
        (
            "RUN -o page.html --max-mb 0",
            "--max-mb: expected a positive number, received 0",
        ),
        ("RUN -o page.html --task nothing", "unknown task 'nothing'"),
        ("RUN -o page.html -e ppo", "unknown estimator 'ppo'"),
        ("RUN --port 99999", "port must be 0-65535"),
        ("RUN --host 192.0.2.1", "cannot listen on '192.0.2.1'"),
        ("RUN -e nothing:here", "ModuleNotFoundError"),
    ],
)
def test_bad_input_is_one_line(hgpo, small_run, tmp_path, monkeypatch, words, line):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, error = hgpo(
        "view", *(str(small_run) if word == "RUN" else word for word in words.split())
    )
    assert (code, out) == (2, "")
    assert line in error
    assert error.count("\n") == 1
    assert list(Path().iterdir()) == []


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"starlette", "uvicorn"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from hgpo_train.cli import main
main()
"""


@pytest.mark.slow
def test_without_the_extra_a_page_can_be_written_and_one_line_says_how_to_install_it(
    small_run, tmp_path
):
    done = python(ABSENT, "view", small_run, "--no-browser")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"error: this needs (starlette|uvicorn): pip install .*\[view\]'?\n",
        done.stderr,
    )
    done = python(ABSENT, "view", small_run, "-o", tmp_path / "page.html")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_page_without_secrets_can_be_loaded(tmp_path):
    """Secrets end before a quotation mark or a backslash of the text, which a search in finished JSON would take."""
    texts = [
        '?api_key=hunter22"',
        "?api_key=hunter22\\",
        '"http://me:hunter22@host/"',
        "?api_key=hunter22\n<b>",
    ]
    step = {
        "task_id": "a",
        "step": 0,
        "action": "go",
        "reward": 0.0,
        "terminated": True,
        "won": False,
    }
    rows = [
        {**step, "trajectory": f"t{at}", "state": text} for at, text in enumerate(texts)
    ]
    write_run(tmp_path / "run", rows)
    write_page(open_sources([str(tmp_path / "run")]), tmp_path / "page.html")
    states = data_of(tmp_path / "page.html")["answers"]["runs/0/groups/0"]["states"]
    assert "hunter22" not in (tmp_path / "page.html").read_text()
    assert sorted(states) == sorted(
        ['?api_key=***"', "?api_key=***", '"http://***@host/"', "?api_key=***\n<b>"]
    )


@pytest.mark.slow
def test_all_tasks_are_in_the_page_unless_it_says_so(rich_run, six_tasks, tmp_path):
    sources = open_sources([str(rich_run), str(six_tasks)])
    file = tmp_path / "page.html"
    assert write_page(sources, file).left_out == 0
    assert [run["selection"] for run in data_of(file)["runs"]] == [
        {"tasks": 6, "of": 6}
    ] * 2
    write_page(sources, file, tasks=2)
    assert [run["selection"] for run in data_of(file)["runs"]] == [
        {"tasks": 2, "of": 6}
    ] * 2
