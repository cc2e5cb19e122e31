"""The core installation: features that need no extra work with only the core's packages."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    packages_distributions,
)
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
OURS = {"hgpo_envs", "hgpo_datasets", "hgpo_train"}
CORE = [
    Requirement(line)
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]
]

PLAY = """
import contextlib, importlib, io, json, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path

absent, out = set(json.loads(sys.argv[1])), Path(sys.argv[2])

class CoreFinder:
    find_distributions = PathFinder.find_distributions  # the extra of a missing module is read from the metadata

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in absent else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, CoreFinder]
for name in [name for name in sys.modules if name.partition(".")[0] in absent]:
    del sys.modules[name]
found = {}
try:
    import pytest
except ModuleNotFoundError as error:
    found["absent"] = error.name

for part in ("advantages", "analysis.statistics", "rollout.run", "evaluation", "cli.quickstart_run", "cli"):
    importlib.import_module(f"hgpo_train.{part}")
import gymnasium, hgpo_envs, hgpo_datasets
from hgpo_envs.webshop.generation import synthetic
from hgpo_envs.webshop.data.build import build
from hgpo_train.advantages import get
from hgpo_train.advantages.advantage_tables import read_metadata, write_advantages
from hgpo_train.cli.quickstart_run import quickstart

played = quickstart(out / "quickstart", tasks=2, group_size=2)
steps = hgpo_datasets.scan_steps(played.run)
rows = write_advantages(steps, [get("hgpo")], out / "hgpo.parquet", chunk_rows=10)
assert rows == steps.collect().height
assert list(read_metadata(out / "hgpo.parquet")["columns"]) == ["advantage"]
found["rows"] = rows

synthetic.write_synthetic(out / "raw", 30, 1)
build(*(out / "raw" / name for name in synthetic.FILES), out / "shop", nouns="stand-in")
for data in (None, str(out / "shop")):
    shop = gymnasium.make("HGPO/WebShop-v0", data=data, split="all")
    _, info = shop.reset(options={"task": 0})
    for action in ("search[shoes]", "click[back to search]", "search[the]", "click[next >]"):
        shop.step(action)
    shop.close()
    found["shops"] = found.get("shops", 0) + 1

from hgpo_train.cli import main
run = str(played.run)
for words in (["train", "tiny-alfworld"], ["sft", run, "--model", "x"], ["eval", "--policy", "transformers:x"]):
    sys.argv = ["hgpo", *words, "--out", str(out / words[0])]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main()
        except SystemExit as end:
            found[words[0]] = [end.code, said.getvalue()]
found["imported"] = sorted({name.partition(".")[0] for name in sys.modules} & absent)
(out / "found.json").write_text(json.dumps(found))
"""


def closure(requirements):
    """Return the distributions that these requirements install in this environment."""
    found = set()
    waiting = [(requirement, "") for requirement in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in {"", *requirement.extras}:
            if (name, wanted) in found:
                continue
            found.add((name, wanted))
            try:
                lines = distribution(name).requires or []
            except PackageNotFoundError:
                # this test is about missing packages, not about versions
                continue
            waiting += [(Requirement(line), wanted) for line in lines]
    return {name for name, _ in found}


@pytest.mark.slow
def test_it_plays_and_computes_with_the_core_alone(tmp_path):
    core = closure(CORE)
    absent = {
        module
        for module, names in packages_distributions().items()
        if module not in OURS and not {canonicalize_name(name) for name in names} & core
    }
    assert {"pytest", "_pytest"} <= absent
    assert not {"numpy", "polars", "pyarrow", "gymnasium", "orjson"} & absent
    command = [sys.executable, "-c", PLAY, json.dumps(sorted(absent)), str(tmp_path)]
    paths = f"{ROOT}:{ROOT / 'datasets'}"
    done = subprocess.run(
        command, env={"PYTHONPATH": paths}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.pop("rows") > 0
    assert [found.pop(name) for name in ("absent", "shops", "imported")] == [
        "pytest",
        2,
        [],
    ]
    assert found.keys() == {"train", "sft", "eval"}
    for status, line in found.values():
        assert (status, line.count("\n")) == (2, 1)
        assert re.search(r"pip install .*\[train\]", line)


def test_the_core_is_what_its_page_says_and_nothing_heavy():
    page = (
        (ROOT / "docs/dependencies.md").read_text().split("## Core")[1].split("##")[0]
    )
    rows = [line.split()[1] for line in page.splitlines() if line.startswith("| ")]
    assert sorted(rows) == sorted(
        ["package", *(requirement.name for requirement in CORE)]
    )
    heavy = {
        "pandas",
        "torch",
        "transformers",
        "vllm",
        "aiohttp",
        "datasets",
        "duckdb",
        "scipy",
        "spacy",
    }
    assert not closure(CORE) & heavy
