"""The documentation site: pages are in the navigation, the reference is complete, and it builds without a warning."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest
import yaml
from command import arguments_of, every_command
from refusals import refused

from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.registration import default_arguments
from hgpo_train.advantages import get
from hgpo_train.policies.registry import find_policy, trainable_factory
from hgpo_train.training.config import Config, SftConfig, replace
from tools import docs_notebooks, docs_reference, docs_site

ROOT = Path(__file__).parent.parent
CONFIGURATION = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def pages(navigation):
    """The pages of a navigation, in its order."""
    if isinstance(navigation, str):
        return [navigation]
    inner = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in inner for page in pages(part)]


def test_every_page_is_in_the_navigation_once():
    written = [name for name in docs_site.sources() if name.endswith(".md")]
    assert sorted(pages(CONFIGURATION["nav"])) == sorted(written)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(written)


def test_every_command_is_described_with_its_options():
    sections = re.split(r"^##+ ", docs_site.commands_page(), flags=re.MULTILINE)[1:]
    described = {section.partition("\n")[0]: section for section in sections}
    for words, command in every_command().items():
        section = described.pop(" ".join(("hgpo", *words)))
        for argument in arguments_of(command):
            assert argument.name in section
    assert not described


def rows(page):
    """The rows of a page's tables by their first cell, with the markup removed."""
    lines = [line for line in page.splitlines() if line.startswith("| <code>")]
    cells = [
        [
            unescape(re.sub("</?code>", "", cell)).strip()
            for cell in line.split("|")[1:-1]
        ]
        for line in lines
    ]
    return {cell[0]: cell[1:] for cell in cells}


def test_every_argument_of_an_environment_is_described_with_its_default():
    for section in docs_reference.environments_page().split("\n## ")[1:-1]:
        spec = environment_spec(section.partition("\n")[0])
        described = rows(section)
        assert described.keys() == default_arguments(spec).keys()
        for name, default in default_arguments(spec).items():
            assert described[name][1] == repr(default)
            assert described[name][2].endswith(".")
        assert all(f"`{split}`" in section for split in spec.splits)
    assert "## HGPO/WebShop-v0" in docs_reference.environments_page()


def test_every_setting_is_described_with_its_default():
    train, sft = docs_reference.settings_page().split("\n## ")[1:]
    for section, config in ((train, Config()), (sft, SftConfig())):
        values = dict(leaves(config, ""))
        described = rows(section)
        assert described.keys() == values.keys()
        for name, (_, default, meaning) in described.items():
            assert meaning
            written = build_toml(default) if default != "none" else None
            assert written == (
                list(values[name]) if isinstance(values[name], tuple) else values[name]
            )


def test_every_setting_of_rollouts_the_update_and_the_model_has_a_row_of_engines():
    rows_of = docs_reference.capabilities()
    sections = ("rollout", "update", "model")
    assert rows_of.keys() == {
        name for name, _ in leaves(Config(), "") if name.split(".")[0] in sections
    }
    assert docs_reference.ENGINES.keys() <= rows_of.keys()
    assert docs_reference.engines_page().count("\n| <code>") == len(rows_of)
    with refused(r"openai cannot be trained with"):
        trainable_factory("openai")
    for engine, column in (("transformers", 0), ("vllm", 1)):
        for name, cells in rows_of.items():
            section, _, field = name.partition(".")
            if field in ("ahead", "compile"):
                others = {"engine": engine} if section == "rollout" else {}
                changes = {
                    "rollout": {"engine": engine},
                    "update": {"rollout_is": "token"},
                }
                changes[section] = {**others, field: True}
                if cells[column] == "refused":
                    with refused(rf"setting {section}\.{field}"):
                        replace(Config(), **changes)
                else:
                    replace(Config(), **changes)
            else:
                assert cells[column] != "refused"
    assert rows_of["rollout.temperature"][2] == "policy option"
    assert rows_of["rollout.filter_groups"][3].startswith("refused: unless false")


def leaves(settings, prefix):
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def build_toml(text):
    return tomllib.loads(f"value = {text}")["value"]


def test_every_parameter_of_estimators_and_policies_is_described():
    page = docs_reference.estimators_page()
    common, *sections = page.split("\n## ")[1:]
    for section in sections:
        parameters = get(section.partition("\n")[0]).parameters
        assert rows(common).keys() | rows(section).keys() == {
            field.name for field in dataclasses.fields(parameters)
        }
    assert {section.partition("\n")[0] for section in sections} >= {
        "hgpo",
        "gigpo",
        "grpo",
    }
    for section in docs_reference.policies_page().split("\n## ")[1:]:
        options = find_policy(section.partition("\n")[0])[0].options
        assert list(rows(section)) == [
            field.name for field in dataclasses.fields(options)
        ]
        assert all(meaning for *_, meaning in rows(section).values())


def test_an_undocumented_argument_is_an_error():
    @dataclasses.dataclass
    class Options:
        """Options."""

        silent: int = 0

    with pytest.raises(KeyError, match="silent"):
        list(docs_reference.dataclass_values(Options))


@pytest.mark.parametrize("package", docs_site.PACKAGES)
def test_every_public_name_is_described_where_it_is_defined(package):
    page = docs_site.api_pages()[package]
    public = docs_site.public_names(package)
    for place in public.values():
        assert f"::: {place}\n" in page or f"[{place}]" in page
        module, _, name = place.rpartition(".")
        assert hasattr(import_module(module), name)
    exported = getattr(import_module(package), "__all__", public)
    assert {name for name in exported if name != "estimators"} == public.keys()


@pytest.mark.slow
def test_links_that_leave_the_folder_are_copied():
    sources = docs_site.sources()
    training = sources["training.md"]
    assert isinstance(training, str)
    assert "(benchmarks/results/learning_alfworld.png)" in training
    assert (
        sources["benchmarks/results/learning_alfworld.png"]
        == ROOT / "benchmarks/results/learning_alfworld.png"
    )
    assert "](docs/" not in str(sources["index.md"])


@pytest.mark.slow
def test_the_page_of_a_notebook_is_executed_and_loads_only_files_that_are_beside_it(
    docs_only, monkeypatch
):
    marimo = pytest.importorskip("marimo")
    monkeypatch.setenv("PYTHONPATH", docs_only["PYTHONPATH"])  # also without torch
    page = docs_notebooks.exported(ROOT / "notebooks/own_rollouts.py")
    assert "Variance at a state explained" in page, "the title of a chart"
    loaded = re.findall(r'<(?:script|link)[^>]*\s(?:src|href)="([^"]+)"', page)
    assert len(loaded) > 100
    for name in loaded:
        assert (
            Path(marimo.__file__).parent / "_static" / name.removeprefix("marimo/")
        ).is_file()


def test_links_to_notebooks_lead_to_their_pages():
    page = docs_site.sources()["notebooks.md"]
    for notebook, exported in docs_notebooks.pages().items():
        assert f"]({exported})" in page
        assert f"../{notebook}" in (ROOT / "docs/notebooks.md").read_text("utf-8")


BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "vllm", "peft"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""
WRITE = """
import pathlib, sys
try:
    import torch
except ModuleNotFoundError:
    from tools import docs_notebooks, docs_site
    docs_notebooks.exported = lambda notebook: f"<p>{notebook.stem}</p>"  # tested above
    docs_site.write(pathlib.Path(sys.argv[1]))
else:
    sys.exit("torch was imported")
"""


@pytest.fixture(scope="module")
def docs_only(tmp_path_factory):
    """The environment of processes that have what the extra docs installs, but no torch, transformers or vLLM."""
    folder = tmp_path_factory.mktemp("blocker")
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return os.environ | {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def site(tmp_path_factory, docs_only):
    """The site, built with the extra docs alone, in which a notebook's page is a line."""
    for module in ("zensical", "mkdocstrings", "marimo"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("docs")
    shutil.copyfile(ROOT / "mkdocs.yml", folder / "mkdocs.yml")
    # what mkdocstrings reads
    for package in ("hgpo_envs", "hgpo_train", "datasets", "tools"):
        (folder / package).symlink_to(ROOT / package)
    write = ([sys.executable, "-c", WRITE, str(folder / "build/docs")], ROOT)
    build = ([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], folder)
    for command, where in (write, build):
        done = subprocess.run(
            command,
            cwd=where,
            env=docs_only,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    for page in pages(CONFIGURATION["nav"]):
        address = (
            "index.html"
            if page == "index.md"
            else f"{page.removesuffix('.md')}/index.html"
        )
        html = (site / address).read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\s\">]+)", html)
        loaded += re.findall(
            r"<link[^>]*rel=\"?(?:stylesheet|preload|preconnect)[^>]*href=\"?([^\s\">]+)",
            html,
        )
        assert loaded
        assert [source for source in loaded if source.startswith(("http", "//"))] == []
        assert "[hgpo" not in re.sub(r"<pre.*?</pre>", "", html, flags=re.DOTALL), (
            "a reference that leads nowhere"
        )
    assert (site / "notebooks/own_rollouts.html").read_text(
        "utf-8"
    ) == "<p>own_rollouts</p>"
    assert (site / "notebooks/marimo/index.html").is_file()
    reference = (site / "reference/hgpo_datasets/index.html").read_text("utf-8")
    assert 'id="hgpo_datasets.reader.scan_steps"' in reference
    assert "<blockquote>" not in reference, "examples are code"


SEARCHES = {
    "turn off memory": "memory/",
    "use my own model with vLLM": "questions/",
    "own model on vLLM": "questions/",
    "resume after crash": "questions/",
    "why is my advantage 0": "questions/",
    "multi GPU": "questions/",
    "8 GPUs": "questions/",
    "how many GPUs do I need": "questions/",
    "how to cite": "questions/",
    "out of memory": "questions/",
    "run without internet": "questions/",
    "no gpu": "questions/",
    "which estimator should I use": "questions/",
    "custom reward": "questions/",
    "custom environment": "questions/",
    "change the prompt": "questions/",
    "reproduce the paper": "questions/",
    "compare two models": "questions/",
    "tool calling": "questions/",
    "install": "#install-and-run",
    "train with LoRA": "questions/",
    "how do I install without torch": "questions/",
    "what hardware do I need": "questions/",
    "stop a run and continue later": "questions/",
    "why is success zero": "questions/",
    "how do I log to tensorboard": "questions/",
    "where are my files": "questions/",
    "how are invalid actions penalised": "questions/",
    "reasoning models": "questions/",
    "context length exceeded": "questions/",
    "push model to the hub": "questions/",
    "is it deterministic": "questions/",
    "view on remote server": "questions/",
    "W&B": "how_to/#track-with-weights--biases",
    "OOM": "training/#gpu-memory-oom",
    "context inconsistency": "questions/",
    "singleton": "estimators/#singleton-groups",
    "export to hugging face": "interchange/#hugging-face-datasets",
}
"""Where a search of the site must lead, among its first two hits; a page stands for its sections."""

LINKS = """
() => {
  const roots = [document], links = [];
  while (roots.length) {
    for (const element of roots.pop().querySelectorAll("*")) {
      if (!element.shadowRoot) continue;
      roots.push(element.shadowRoot);
      links.push(...[...element.shadowRoot.querySelectorAll("a")].map((link) => link.href));
    }
  }
  return links;
}
"""
"""The links of the search's dialog, which is in a shadow root."""

HITS = f"() => ({LINKS})().filter((link) => new URL(link, location).searchParams.has('h')).length"
"""How many hits the dialog shows; its other links have no text to highlight."""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without printing a line for each request."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_searches_find_their_place_in_the_first_two_hits(site):
    """Types into the search of the site in a browser."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed")
    handler = partial(QuietHandler, directory=str(site))
    hits = {}
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        playwright.sync_playwright() as driver,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_address[1]}/"
        page = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        ).new_page()
        page.goto(root, wait_until="networkidle")
        page.keyboard.press("/")  # opens the search
        for query in SEARCHES:
            # The hits of the query before stay until the new ones are found: an empty query removes them.
            page.locator("input[type=text]").last.fill("")
            page.wait_for_function(f"() => ({HITS})() === 0")
            page.locator("input[type=text]").last.fill(query)
            with suppress(playwright.TimeoutError):  # no hit at all
                page.wait_for_function(f"() => ({HITS})() > 0", timeout=10_000)
            hits[query] = [
                re.sub(r"[?]h=[^#]*", "", link.removeprefix(root))
                for link in page.evaluate(LINKS)[:2]
            ]
        server.shutdown()
    lost = {
        query: hits[query]
        for query, at in SEARCHES.items()
        if not any(hit.startswith(at) for hit in hits[query])
    }
    assert lost == {}
