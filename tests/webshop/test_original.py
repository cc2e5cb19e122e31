"""The original as a backend: errors for missing parts and, if a checkout is available, a comparison.

`HGPO_WEBSHOP_CHECKOUT` names a checkout with data and index, `HGPO_WEBSHOP_PYTHON` the interpreter it is installed
for, `HGPO_WEBSHOP_NOUNS` a file of nouns where there is no spaCy model.
"""

import os
import random
import sys
from pathlib import Path

import pytest
from refusals import refused, refused_saying

from hgpo_envs.errors import UnknownTask
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.reference.original import OriginalSource


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout with all files and a program of one line, which a test writes."""
    for name in (
        "data/items_shuffle_1000.json",
        "search_engine/indexes/segments_1",
        "web_agent_site/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    program = tmp_path / "web_agent_site" / "envs" / "web_agent_text_env.py"
    program.parent.mkdir()
    program.touch()
    (program.parent / "__init__.py").touch()
    return program


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (
            "import no_such_package",
            "No module named 'no_such_package'; install the packages of its requirements.txt",
        ),
        (
            "raise OSError(\"[E050] Can't find model 'en_core_web_sm'\")",
            "install the spaCy model",
        ),
        (
            "raise ValueError('JVM path\\nnot found')",
            "JVM path not found; install Java 11",
        ),
        (
            "raise SystemExit(3)",
            "SystemExit: 3; check whether the checkout runs by itself",
        ),
        (
            "import os, sys; sys.stderr.write('out of luck'); sys.stderr.flush(); os._exit(4)",
            "out of luck",
        ),
        ("search_engine/indexes/segments_1", "no search index in"),
        ("data/items_shuffle_1000.json", "has no items_shuffle"),
        ("web_agent_site/envs/web_agent_text_env.py", "no WebShop checkout in"),
    ],
)
def test_errors_contain_the_fix(checkout, program, line):
    """A program that fails in some way, or a file that is missing."""
    folder = checkout.parents[2]
    if (folder / program).is_file():
        (folder / program).unlink()
    else:
        checkout.write_text(program)
    with refused_saying(line):
        OriginalSource(folder)


def test_bad_arguments(checkout):
    for arguments, line in (
        (
            {"shuffle_seed": 7},
            "shuffle_seed: expected 233 with the original, received 7",
        ),
        ({"python": "/no/python"}, "cannot run /no/python: No such file or directory"),
        ({"goals": "any"}, "unknown kind of goals 'any'"),
    ):
        with refused(line):
            OriginalSource(**{"data": checkout.parents[2], **arguments})


QUERIES = [
    "hair",
    "red shoes",
    "the",
    "<r>",
    "<c> beauty",
    "<c>",
    "<a> x",
    "<q> sofas",
    "search_results hair",
    "日本",
]
ARGUMENTS = {
    "human": {"goals": "human"},
    "synthetic": {"goals": "synthetic", "price_seed": 3},
    "rich": {
        "goals": "human",
        "observation_mode": "text_rich",
        "show_attributes": True,
    },
}


@pytest.mark.original
@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
def test_both_backends_agree(tmp_path, name):
    """Random walks, including quirks, give the same texts, actions, rewards, parts and errors."""
    folder = os.environ.get("HGPO_WEBSHOP_CHECKOUT")
    if not folder:
        pytest.skip("needs a checkout of the original (HGPO_WEBSHOP_CHECKOUT)")
    nouns = os.environ.get("HGPO_WEBSHOP_NOUNS")
    data = Path(folder) / "data"
    arguments = ARGUMENTS[name]
    items, attributes = (
        next(data.glob(f"{pattern}*.json"))
        for pattern in ("items_shuffle", "items_ins_v2")
    )
    build(
        items,
        attributes,
        data / "items_human_ins.json",
        tmp_path / "catalogue",
        nouns=nouns or "spacy",
    )
    native = WebShopSource(tmp_path / "catalogue", **arguments)
    python = os.environ.get("HGPO_WEBSHOP_PYTHON", sys.executable)
    original = OriginalSource(folder, **arguments, python=python, nouns=nouns)
    assert len(native.ids("all")) == len(original.ids("all"))
    with pytest.raises(UnknownTask):
        original.task(len(original.ids("all")))
    choose = random.Random(1)
    engines = native.engine(), original.engine()
    for task_id in choose.sample(list(native.ids("all")), 25):
        assert native.task(task_id).instruction == original.task(task_id).instruction
        states = [engine.start(task_id) for engine in engines]
        for _ in range(12):
            ours, theirs = states
            assert {**ours.info, **theirs.info} == dict(ours.info)
            for part in (
                "text",
                "actions",
                "valid",
                "terminated",
                "won",
                "reward",
                "score",
            ):
                assert getattr(ours, part) == getattr(theirs, part)
            offered = [action for action in ours.actions if action.startswith("click[")]
            search = f"search[{choose.choice(QUERIES)}]"
            command = choose.choice(
                [*offered, *offered, search, "click[buy now]", "noop"]
            )
            states = [engine.act(command) for engine in engines]
    original.process.close()
