"""The benchmark and the policy in the documentation work as it says: in the working directory and installed."""

import re

import pytest
from command import ROOT, environment, invoke, python
from distribution import write_distribution
from refusals import refused

from hgpo_datasets import scan_steps
from hgpo_train.cli.new import filled

KINDS = ("environment", "estimator", "policy")


def documented(page, module):
    """The code block of a page that begins with the module's name."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    block = re.search(rf"```python\n# {module}\.py\n(.*?)```", text, re.DOTALL)
    assert block
    return block[1]


def entry_point(page, group):
    """The entry point that a page declares."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    line = re.search(
        rf'\[project\.entry-points\."{re.escape(group)}"\]\n(\S+) = "(\S+)"\n', text
    )
    assert line
    return {line[1].strip('"'): line[2]}


def hgpo(folder, *lines, path=()):
    """Runs commands in one process, in a folder, with further folders on the path."""
    script = (
        "import shlex, sys\nfrom hgpo_train.cli.app import run\n"
        "for line in sys.argv[1:]:\n    run(shlex.split(line))\n"
    )
    # as the installed command, without the working directory
    safe = environment(*path, PYTHONSAFEPATH="1")
    done = python(script, *lines, env=safe, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_the_page_shows_what_hgpo_new_writes():
    assert filled("environment", "guess") == "# guess.py\n" + documented(
        "environments.md", "guess"
    )
    assert filled("tool_environment", "box") == "# box.py\n" + documented(
        "environments.md", "box"
    )


@pytest.mark.slow
def test_what_hgpo_new_writes_passes_its_tests_and_is_played(tmp_path):
    hgpo(
        tmp_path,
        *(f"new {kind} my_{kind}" for kind in KINDS),
        "new environment my_tools --tools",
    )
    tests = [f"test_my_{kind}.py" for kind in (*KINDS, "tools")]
    done = python(
        "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))", *tests, cwd=tmp_path
    )
    assert "6 passed" in done.stdout, done.stdout
    hgpo(
        tmp_path,
        "check env my_environment:MY_ENVIRONMENT",
        "check env my_tools:MY_TOOLS",
        "rollout --env my_tools:MY_TOOLS --policy expert --tasks 3 --out runs/tools",
        "rollout --env my_environment:MY_ENVIRONMENT --policy my_policy:my_policy --tasks 3 --out runs/mine",
        "advantages runs/mine -e my_estimator:my_estimator",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_hgpo_new_prints_the_next_command_and_overwrites_nothing(tmp_path, kind):
    printed = invoke("new", kind, "my_own", "--out", tmp_path)
    assert "pytest test_my_own.py\n    hgpo " in printed
    (tmp_path / "my_own.py").unlink()
    with refused(r"test_my_own.py exists already"):
        invoke("new", kind, "my_own", "--out", tmp_path)
    assert not (tmp_path / "my_own.py").exists()


def test_hgpo_new_names_the_quickstarts_run_and_pytest_where_it_is_missing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("hgpo_train.cli.new.find_spec", lambda _: None)
    printed = invoke("new", "estimator", "my_own", "--out", tmp_path)
    assert "    pip install pytest\n    pytest test_my_own.py\n" in printed
    assert "hgpo advantages runs/quickstart/run -e my_own:my_own" in printed


@pytest.mark.parametrize(
    "name", ["class", "2d", "Maze", "my-maze", "random", "../maze", "_"]
)
def test_hgpo_new_refuses_names_that_cannot_be_imported(tmp_path, name):
    with refused(f"NAME: .*{name}"):
        invoke("new", "policy", name, "--out", tmp_path / "out")
    with refused("--tools: expected an environment, received policy"):
        invoke("new", "policy", "mine", "--tools", "--out", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path):
    page = (ROOT / "docs/environments.md").read_text("utf-8")
    commands = re.findall(r"^    hgpo (.*guess.*)$", page, re.MULTILINE)
    assert [command.split()[0] for command in commands] == [
        "new",
        "rollout",
        "advantages",
        "eval",
    ]
    hgpo(
        tmp_path,
        *commands,
        "rollout --env guess:GUESS --workers 1 --tasks 2 --out runs/workers",
    )
    steps = scan_steps(tmp_path / "runs/guess").collect()
    assert steps["env_id"].unique().to_list() == ["Mine/Guess-v0"]
    assert steps["task_id"].n_unique() == 10
    assert not steps["aborted"].any()
    assert steps["won"].any()


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Mine/Guess-v0", "HGPO/ALFWorld-v0"])
def test_installed_by_the_entry_points_of_the_pages(tmp_path, env):
    modules = {
        "guess": documented("environments.md", "guess"),
        "first_action": documented("rollouts.md", "first_action"),
    }
    points = {
        "hgpo.environments": entry_point("environments.md", "hgpo.environments"),
        "hgpo.policies": entry_point("rollouts.md", "hgpo.policies"),
    }
    write_distribution(tmp_path / "site", "of-mine", modules, points)
    rollout = f"rollout --env {env} --policy first --tasks 2 --group-size 2 --max-steps 5 --out run"
    hgpo(tmp_path, rollout, path=(tmp_path / "site",))
    steps = scan_steps(tmp_path / "run").collect()
    assert not steps["aborted"].any()
    assert (steps["action"] == steps["admissible_actions"].list.first()).all()
