"""The commands of all pages exist; those of docs/how_to.md and docs/tutorial.md run in the order of the page."""

import re
import shlex
from pathlib import Path

import polars as pl
import pytest
from chat_server import Api
from command import every_command, invoke

DOCS = Path(__file__).parent.parent / "docs"
PAGE, TUTORIAL = (
    (DOCS / name).read_text("utf-8") for name in ("how_to.md", "tutorial.md")
)
SECTIONS = {section.partition("\n")[0]: section for section in PAGE.split("\n## ")[1:]}
RUNS_HERE = ("rollout", "eval", "stats", "advantages", "data")
"""The commands that run; `train` and `view` have tests of their own."""


def commands(section):
    """The words of a section's `hgpo` commands."""
    lines = (
        "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
        .replace("\\\n", " ")
        .splitlines()
    )
    return [
        shlex.split(line, comments=True)[1:]
        for line in lines
        if line.startswith("hgpo ")
    ]


def lines_of(page):
    """The arguments of a page's `hgpo` commands, in code blocks; spaces, `#` or `>` end a command."""
    text = re.sub(r"\\\n\s*", " ", page.read_text("utf-8"))
    return re.findall(r"^(?: {4})?hgpo (.+?)(?: {3,}| [#>] |$)", text, re.MULTILINE)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_page_answers_what_people_ask():
    words = (
        "one GPU",
        "several GPUs",
        "Weights",
        "LoRA",
        "served",
        "prompts",
        "environment",
        "Import",
        "large",
    )
    assert all(any(word in title for title in SECTIONS) for word in words)
    names = [command[0] for command in commands(TUTORIAL)]
    assert names == [
        "rollout",
        "stats",
        "view",
        "advantages",
        "quickstart",
        "eval",
        "eval",
    ]


@pytest.mark.parametrize(
    "page",
    sorted(page for page in DOCS.glob("*.md") if lines_of(page)),
    ids=lambda page: page.stem,
)
def test_every_command_accepts_its_arguments(page):
    known = every_command()
    for line in lines_of(page):
        words = shlex.split(line)
        if words == ["--version"]:
            continue
        length = max(n for n in range(1, len(words) + 1) if tuple(words[:n]) in known)
        known[tuple(words[:length])].parse_args(
            words[length:], print_error=False, exit_on_error=False
        )


@pytest.mark.slow
def test_the_planned_runs_fit_their_cards():
    pytest.importorskip("torch")
    plans = [words for words in commands(PAGE) if "--plan" in words]
    assert len(plans) == 2
    for words in plans:
        assert "fits on H100-80" in invoke(*words)


def run(section):
    for words in commands(section):
        if words[0] in RUNS_HERE:
            invoke(*words)


@pytest.mark.slow
def test_a_served_model():
    pytest.importorskip("aiohttp")
    with Api() as server:
        run(
            SECTIONS["Use a served model"].replace(
                "http://localhost:8000/v1", server.url
            )
        )
    steps = pl.scan_parquet("runs/served/steps/*.parquet").collect()
    assert steps["action"].unique().to_list() == ["look"]


@pytest.mark.slow
def test_own_prompts():
    section = SECTIONS["Use your own prompts"]
    (template,) = re.findall(r"```jinja\n(.*?)```", section, re.DOTALL)
    Path("my.j2").write_text(template, "utf-8")
    run(section)
    (prompt,) = (
        pl.scan_parquet("runs/prompts/steps/*.parquet")
        .filter(step=2)
        .select("prompt")
        .head(1)
        .collect()
    )
    assert prompt[0].count("You saw: ") == 2
    assert "You can: '" in prompt[0]


@pytest.mark.slow
def test_own_policies_and_estimators_and_large_runs():
    run(SECTIONS["Use your own environment, policy or estimator"])
    section = SECTIONS["Work with large saved runs"]
    run(section)
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    found: dict = {}
    exec(code, found)
    assert found["lengths"].columns == ["task_id", "length"]


@pytest.mark.slow
def test_json_lines_are_imported():
    rows = [
        {
            "episode": f"{level}/{number}",
            "level": level,
            "t": t,
            "seen": f"room {t}",
            "did": "go",
            "points": t * number,
        }
        for level in ("a", "b")
        for number in range(3)
        for t in range(2)
    ]
    pl.DataFrame(rows).write_ndjson("mine.jsonl")
    section = SECTIONS["Import rollouts"]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(code, {})
    run(section)
    (table,) = Path().glob("mine.advantages/*.parquet")
    assert pl.read_parquet(table).height == len(rows)


@pytest.mark.slow
def test_what_needs_no_training_runs(capsys):
    for block in re.findall(r"```(?:sh|python)\n.*?```", TUTORIAL, re.DOTALL):
        if code := block.removesuffix("```").partition("```python\n")[2]:
            exec(code, {})
        for command in commands(block):
            if command[0] in ("rollout", "stats", "advantages"):
                invoke(*command)
    printed = capsys.readouterr().out
    assert "Answer with exactly one action" in printed
    assert "shape: (5, 3)" in printed
