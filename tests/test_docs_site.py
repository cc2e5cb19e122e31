"""The documentation site: pages are in the navigation, the reference is complete, and it builds without a warning."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html import unescape
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from command import every_command

from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.registration import default_arguments
from hgpo_train.advantages import get
from hgpo_train.policies.registry import policy_spec
from hgpo_train.training.config import Config, SftConfig
from tools import docs_notebooks, docs_reference, docs_site

ROOT = Path(__file__).parent.parent
CONFIGURATION = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def pages(navigation: object) -> list[str]:
    """The pages of a navigation, in its order."""
    if isinstance(navigation, str):
        return [navigation]
    inner = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in inner for page in pages(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    written = [name for name in docs_site.sources() if name.endswith(".md")]
    assert sorted(pages(CONFIGURATION["nav"])) == sorted(written)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(written)


def test_every_command_is_described_with_its_options() -> None:
    sections = re.split(r"^##+ ", docs_site.commands_page(), flags=re.MULTILINE)[1:]
    described = {section.partition("\n")[0]: section for section in sections}
    for words, command in every_command().items():
        section = described.pop(" ".join(("hgpo", *words)))
        for parameter in command.params:
            assert parameter.name in section or any(option in section for option in parameter.opts)
    assert not described


def rows(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables by their first cell, with the markup removed."""
    lines = [line for line in page.splitlines() if line.startswith("| <code>")]
    cells = [[unescape(re.sub("</?code>", "", cell)).strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {cell[0]: cell[1:] for cell in cells}


def test_every_argument_of_an_environment_is_described_with_its_default() -> None:
    for section in docs_reference.environments_page().split("\n## ")[1:-1]:
        spec = environment_spec(section.partition("\n")[0])
        described = rows(section)
        assert described.keys() == default_arguments(spec).keys()
        for name, default in default_arguments(spec).items():
            assert described[name][1] == repr(default)
            assert described[name][2].endswith(".")
        assert all(f"`{split}`" in section for split in spec.splits)
    assert "## HGPO/WebShop-v0" in docs_reference.environments_page()


def test_every_setting_is_described_with_its_default() -> None:
    train, sft = docs_reference.settings_page().split("\n## ")[1:]
    for section, config in ((train, Config()), (sft, SftConfig())):
        values = dict(leaves(config, ""))
        described = rows(section)
        assert described.keys() == values.keys()
        for name, (_, default, meaning) in described.items():
            assert meaning
            written = build_toml(default) if default != "none" else None
            assert written == (list(values[name]) if isinstance(values[name], tuple) else values[name])


def leaves(settings: object, prefix: str) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def build_toml(text: str) -> object:
    return tomllib.loads(f"value = {text}")["value"]


def test_every_parameter_of_estimators_and_policies_is_described() -> None:
    page = docs_reference.estimators_page()
    common, *sections = page.split("\n## ")[1:]
    for section in sections:
        parameters = get(section.partition("\n")[0]).parameters
        assert rows(common).keys() | rows(section).keys() == {field.name for field in dataclasses.fields(parameters)}
    assert {section.partition("\n")[0] for section in sections} >= {"hgpo", "gigpo", "grpo"}
    for section in docs_reference.policies_page().split("\n## ")[1:]:
        options = policy_spec(section.partition("\n")[0]).options
        assert list(rows(section)) == [field.name for field in dataclasses.fields(options)]
        assert all(meaning for *_, meaning in rows(section).values())


def test_an_undocumented_argument_is_an_error() -> None:
    @dataclasses.dataclass
    class Options:
        """Options."""

        silent: int = 0

    with pytest.raises(KeyError, match="silent"):
        list(docs_reference.dataclass_values(Options))


@pytest.mark.parametrize("package", docs_site.PACKAGES)
def test_every_public_name_is_described_where_it_is_defined(package: str) -> None:
    page = docs_site.api_pages()[package]
    public = docs_site.public_names(package)
    for place in public.values():
        assert f"::: {place}\n" in page or f"[{place}]" in page
        module, _, name = place.rpartition(".")
        assert hasattr(import_module(module), name)
    exported = getattr(import_module(package), "__all__", public)
    assert {name for name in exported if name != "estimators"} == public.keys()


def test_links_that_leave_the_folder_are_copied() -> None:
    sources = docs_site.sources()
    training = sources["training.md"]
    assert isinstance(training, str)
    assert "(benchmarks/results/learning_alfworld.png)" in training
    assert sources["benchmarks/results/learning_alfworld.png"] == ROOT / "benchmarks/results/learning_alfworld.png"
    assert "](docs/" not in str(sources["index.md"])


@pytest.mark.slow
def test_the_page_of_a_notebook_is_executed_and_loads_only_files_that_are_beside_it() -> None:
    marimo = pytest.importorskip("marimo")
    page = docs_notebooks.exported(ROOT / "notebooks/own_rollouts.py")
    assert "Variance at a state explained" in page, "the title of a chart"
    loaded = re.findall(r'<(?:script|link)[^>]*\s(?:src|href)="([^"]+)"', page)
    assert len(loaded) > 100
    for name in loaded:
        assert (Path(marimo.__file__).parent / "_static" / name.removeprefix("marimo/")).is_file()


def test_links_to_notebooks_lead_to_their_pages() -> None:
    page = docs_site.sources()["notebooks.md"]
    for notebook, exported in docs_notebooks.pages().items():
        assert f"]({exported})" in page
        assert f"../{notebook}" in (ROOT / "docs/notebooks.md").read_text("utf-8")


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path, monkeypatch) -> None:
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    shutil.copyfile(ROOT / "mkdocs.yml", tmp_path / "mkdocs.yml")
    for folder in ("hgpo_envs", "hgpo_train", "datasets", "tools"):  # what mkdocstrings reads
        (tmp_path / folder).symlink_to(ROOT / folder)
    pytest.importorskip("marimo")
    monkeypatch.setattr(docs_notebooks, "exported", lambda notebook: f"<p>{notebook.stem}</p>")  # tested above
    docs_site.write(tmp_path / "build/docs")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    for page in pages(CONFIGURATION["nav"]):
        address = "index.html" if page == "index.md" else f"{page.removesuffix('.md')}/index.html"
        html = (tmp_path / "site" / address).read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\s\">]+)", html)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|preload|preconnect)[^>]*href=\"?([^\s\">]+)", html)
        assert loaded
        assert [source for source in loaded if source.startswith(("http", "//"))] == []
        assert "[hgpo" not in re.sub(r"<pre.*?</pre>", "", html, flags=re.DOTALL), "a reference that leads nowhere"
    assert (tmp_path / "site/notebooks/own_rollouts.html").read_text("utf-8") == "<p>own_rollouts</p>"
    assert (tmp_path / "site/notebooks/marimo/index.html").is_file()
    reference = (tmp_path / "site/reference/hgpo_datasets/index.html").read_text("utf-8")
    assert 'id="hgpo_datasets.reader.scan_steps"' in reference
    assert "<blockquote>" not in reference, "examples are code"


SEARCHES = {
    "memory": "memory/",
    "turn off memory": "memory/",
    "history_hash_2": "memory/",
    "own model on vLLM": "how_to/#use-a-served-model",
    "8 GPUs": "scaling/",
    "custom environment": "how_to/#use-your-own-environment-policy-or-estimator",
    "tool calling": "environments/#tools",
    "resume": "training/#resume-an-interrupted-run",
    "W&B": "how_to/#track-with-weights--biases",
    "OOM": "training/#gpu-memory-oom",
    "context inconsistency": "statistics/#levels-of-context",
    "singleton": "estimators/#singleton-groups",
}
"""Where a search of the site must lead, among its first two hits; a page stands for its sections."""

SEARCH = """
const {readFileSync} = require("node:fs");
const [path, queries] = process.argv.slice(1);
const lunr = require(path + "/lunr.js");
const {docs} = JSON.parse(readFileSync(path + "/search_index.json"));
const index = lunr(function () {
  this.field("title"); this.field("text"); this.ref("location");
  docs.forEach((doc) => this.add(doc));
});
console.log(JSON.stringify(JSON.parse(queries).map((query) => index.search(query).slice(0, 2).map((hit) => hit.ref))));
"""


@pytest.mark.slow
def test_searches_find_their_place_in_the_first_two_hits(tmp_path, monkeypatch) -> None:
    """Asks the index that MkDocs' search plugin makes of the site's pages, with its own lunr."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    build = pytest.importorskip("mkdocs.commands.build").build
    load_config = pytest.importorskip("mkdocs.config").load_config
    monkeypatch.setattr(docs_notebooks, "write", lambda folder: None)
    docs_site.write(tmp_path / "docs")
    settings = {"site_name": "HGPO", "docs_dir": "docs", "site_dir": "site", "theme": "mkdocs", "plugins": ["search"]}
    slugs = "toc: {slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}}"
    text = yaml.safe_dump(settings) + f"markdown_extensions: [tables, attr_list, {{{slugs}}}]\n"
    (tmp_path / "mkdocs.yml").write_text(text, "utf-8")
    build(load_config(str(tmp_path / "mkdocs.yml")))
    command = ["node", "-e", SEARCH, str(tmp_path / "site/search"), json.dumps(list(SEARCHES))]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    hits = dict(zip(SEARCHES, found, strict=True))
    lost = [
        query for query, at in SEARCHES.items() if not any(hit == at or hit.startswith(f"{at}#") for hit in hits[query])
    ]
    assert lost == [], {query: hits[query] for query in lost}
