"""Write the sources of the documentation site: the pages of docs/, and a reference generated from the code.

python -m tools.docs_site build/docs     what `poe docs` builds the site from (mkdocs.yml)

The pages of docs/ are written for GitHub, where links may lead anywhere in the repository. Here, files outside docs/
are copied to where the links expect them, and links to notebooks lead to their exported pages
(`tools/docs_notebooks.py`). README.md is the front page.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from importlib import import_module
from inspect import isclass, isroutine
from pathlib import Path
from textwrap import indent
from typing import Final

from rich.console import Console

from hgpo_train.cli.app import application, every_command
from tools import docs_notebooks, docs_reference

ROOT: Final = Path(__file__).parent.parent

COPIED: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "AGENTS.md": "agents.md",
    "CHANGELOG.md": "changelog.md",
    "viewer/README.md": "viewer-page.md",
    "integrations/appworld/README.md": "appworld.md",
    "integrations/openenv/README.md": "serving.md",
    "integrations/record/README.md": "conform.md",
    "integrations/tau2/README.md": "tau2.md",
    "integrations/scienceworld/README.md": "scienceworld.md",
    "integrations/textarena/README.md": "textarena.md",
    "integrations/textworld/README.md": "textworld.md",
    "integrations/verifiers/README.md": "verifiers.md",
    "integrations/verl/README.md": "verl.md",
    "research/README.md": "research.md",
    **{
        f"research/docs/{name}.md": f"{name}.md"
        for name in (
            "truth",
            "advise",
            "arena",
            "estimator_comparison",
            "study",
            "branch_study",
            "shrinkage_gae",
            "learning_tabular",
            "gagpo",
        )
    },
}
"""Pages of the repository outside docs/, and their names in the site."""

PACKAGES: Final[dict[str, tuple[str, ...]]] = {
    "hgpo_envs": (
        "env.TextEnv",
        "vector.TextVectorEnv",
        "registration.make_env",
        "registration.make_vector_env",
        "environment_spec.EnvironmentSpec",
        "engine.Task",
        "engine.State",
        "engine.Engine",
        "engine.BranchingEngine",
        "engine.TaskSource",
        "engine.Player",
        "environment_spec.make_player",
        "prompts.PromptTemplate",
        "errors.InputError",
        "errors.UnknownTask",
    ),
    "hgpo_datasets": (),
    "hgpo_train": (),
    "hgpo_train.rollout": (),
    "hgpo_train.advantages": (),
    "hgpo_train.evaluation": (),
}
"""The documented packages, each with its public names where it has no `__all__`."""

LATER: Final = ("hgpo_train",)
"""Packages that gather names of the others: what those pages describe is linked to."""

_LINK: Final = re.compile(r"(?<=\]\()(?!https?:)([^)#]+)")


def sources() -> dict[str, str | Path]:
    """Return the content of every file of the site by its name: a text, or a file to copy."""
    pages = (
        path
        for path in sorted((ROOT / "docs").iterdir())
        if path.suffix != ".py" and path.is_file()
    )
    files: dict[str, str | Path] = {path.name: path for path in pages}
    files |= {name: ROOT / source for source, name in COPIED.items()}
    for name, path in list(files.items()):
        if isinstance(path, Path) and path.suffix == ".md":
            files[name], linked = _relinked(path)
            files |= linked
    files["site.css"] = ROOT / "tools/docs_site.css"
    files["reference/commands.md"] = commands_page()
    files["reference/environments.md"] = docs_reference.environments_page()
    files["reference/settings.md"] = docs_reference.settings_page()
    files["reference/engines.md"] = docs_reference.engines_page()
    files["reference/estimators.md"] = docs_reference.estimators_page()
    files["reference/policies.md"] = docs_reference.policies_page()
    return files | {
        f"reference/{package}.md": page for package, page in api_pages().items()
    }


def write(folder: Path) -> None:
    """Replace a folder by the site's sources."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in sources().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, target)
        else:
            target.write_text(content, "utf-8")
    docs_notebooks.write(folder)


def _relinked(page: Path) -> tuple[str, dict[str, Path]]:
    """Return a page with the links that it has in the site, and the files outside docs/ that it links to."""
    linked: dict[str, Path] = {}

    def new_link(found: re.Match[str]) -> str:
        path = (page.parent / found[0]).resolve()
        name = path.relative_to(ROOT.resolve()).as_posix()
        if path.parent == ROOT / "docs" or name in COPIED:
            return COPIED.get(name, path.name)
        if name in docs_notebooks.pages():
            return docs_notebooks.pages()[name]
        linked[name] = path
        return name

    return _LINK.sub(new_link, page.read_text("utf-8")), linked


# Commands


def commands_page() -> str:
    """Return the page of all commands with their arguments and options."""
    parts = [
        "# Commands",
        "Every command of `hgpo` with its arguments and options, as `hgpo COMMAND --help` prints them.",
    ]
    app = application()
    for words in ((), *(words for words, _ in every_command(app))):
        printed = io.StringIO()
        app.help_print(words, console=Console(file=printed, width=100))
        level = "##" if len(words) <= 1 else "###"
        parts += [
            f"{level} {' '.join(('hgpo', *words))}",
            indent(printed.getvalue().rstrip(), "    "),
        ]
    return "\n\n".join(parts) + "\n"


# Python


def api_pages() -> dict[str, str]:
    """Return the reference of every package, in which mkdocstrings finds the docstrings."""
    described: set[str] = set()
    pages = {
        package: _api_page(package, described)
        for package in sorted(PACKAGES, key=LATER.__contains__)
    }
    return {package: pages[package] for package in PACKAGES}


def _api_page(package: str, described: set[str]) -> str:
    """Return a package's page. Names that another page describes are linked to."""
    module = import_module(package)
    parts = [f"# {package}", (module.__doc__ or "").partition("\n\n")[0]]
    elsewhere = []
    for name, place in public_names(package).items():
        if place in described:
            elsewhere.append(f"| [`{name}`][{place}] | `{place.rpartition('.')[0]}` |")
        else:
            described.add(place)
            parts.append(f"::: {place}")
    if elsewhere:
        table = "\n".join(["| name | defined in |", "|---|---|", *elsewhere])
        parts[2:2] = [
            f"`{package}` also exports these names, which other pages describe:",
            table,
        ]
    return "\n\n".join(parts) + "\n"


def public_names(package: str) -> dict[str, str]:
    """Return a package's public names, modules excepted, with the places where they are defined."""
    module = import_module(package)
    if PACKAGES[package]:
        return {place: f"{package}.{place}" for place in PACKAGES[package]}
    found = {name: getattr(module, name) for name in module.__all__}
    places = {}
    for name, value in found.items():
        if isclass(value) or isroutine(value):
            places[name] = f"{value.__module__}.{value.__qualname__}"
        elif not hasattr(value, "__path__"):
            places[name] = _place_of_value(value, name)
    return places


def _place_of_value(value: object, name: str) -> str:
    """Return where a constant or an alias of a type is defined: in the module that it was imported from."""
    for module in list(sys.modules.values()):
        if (
            module.__name__.startswith("hgpo_")
            and vars(module).get(name) is value
            and "__path__" not in vars(module)
        ):
            return f"{module.__name__}.{name}"
    raise LookupError(
        f"{name}: expected its definition in a module of HGPO, found none"
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
