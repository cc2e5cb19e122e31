"""Build a release, check it, and install it as users do: `python -m tools.release dist`. Needs build, twine and uv.

The version and the repository's address are those of pyproject.toml and nowhere else. A release fails while the address
is a placeholder, without an entry of the changelog, or if a tag (GITHUB_REF_NAME) has another version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13")
PLACEHOLDER: Final = re.compile(r"HOST|OWNER|example\.|\.invalid")


def problems(
    project: dict[str, Any], changelog: str, citation: str, tag: str | None
) -> list[str]:
    """Return what keeps a project from being released, a line each.

    Args:
        project: The table [project] of pyproject.toml.
        changelog: CHANGELOG.md.
        citation: CITATION.cff.
        tag: The tag of the release, if there is one.
    """
    version = project["version"]
    address = project.get("urls", {}).get("Repository", "")
    found = []
    if not address.startswith("https://") or PLACEHOLDER.search(address):
        found.append(
            f"pyproject.toml, project.urls.Repository: expected an address, received {address!r}"
        )
    if f"\n## {version}\n" not in changelog:
        found.append(f"CHANGELOG.md: expected a heading '## {version}'")
    if tag is not None and tag != f"v{version}":
        found.append(f"expected the tag v{version}, received {tag}")
    cited = yaml.safe_load(citation)
    missing = [
        name
        for name in ("cff-version", "message", "title", "authors", "license")
        if not cited.get(name)
    ]
    if missing or cited["license"] != project["license"]:
        found.append(
            f"CITATION.cff: expected {', '.join(missing) or 'the licence of pyproject.toml'}"
        )
    found += [
        f"CITATION.cff: expected no {name}, which pyproject.toml has"
        for name in ("version",)
        if name in cited
    ]
    return found


def build(folder: Path) -> None:
    """Build wheel and sdist into an empty folder, and check their metadata."""
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    _run(sys.executable, "-m", "twine", "check", "--strict", *sorted(folder.iterdir()))


def install(archive: Path, python: str, folder: Path) -> None:
    """Install an archive from a local index into an empty environment, and run the first commands of the README."""
    name = re.match(r"\w+", archive.name)
    assert name is not None
    index = folder / "index" / name[0]
    environment = folder / f"{python}{archive.suffix}"
    shutil.rmtree(index, ignore_errors=True)
    index.mkdir(parents=True)
    shutil.copy(archive, index)
    (index / "index.html").write_text(
        f'<a href="{archive.name}">{archive.name}</a>', "utf-8"
    )
    _run("uv", "venv", "-q", "--python", python, environment)
    source = ("--index", f"hgpo={index.parent.as_uri()}", "--refresh-package", name[0])
    _run(
        "uv",
        "pip",
        "install",
        "-q",
        "--python",
        environment / "bin/python",
        *source,
        name[0],
    )
    hgpo = environment / "bin/hgpo"
    run = folder / f"{python}{archive.suffix}-run"
    _run(hgpo, "--version", cwd=folder)
    _run(hgpo, "quickstart", "--out", run, "--tasks", "4", cwd=folder)
    _run(hgpo, "view", run / "run", "-o", run / "page.html", cwd=folder)


def _run(*command: object, cwd: Path = ROOT) -> None:
    sys.stdout.write(f"$ {' '.join(map(str, command))}\n")
    sys.stdout.flush()
    subprocess.run([str(word) for word in command], cwd=cwd, check=True)  # noqa: S603 - words of this file


def main(folder: Path) -> None:
    """Check, build and install a release."""
    project, changelog, citation = (
        (ROOT / name).read_text("utf-8")
        for name in ("pyproject.toml", "CHANGELOG.md", "CITATION.cff")
    )
    lines = problems(
        tomllib.loads(project)["project"],
        changelog,
        citation,
        os.environ.get("GITHUB_REF_NAME"),
    )
    build(folder)
    with tempfile.TemporaryDirectory() as scratch:
        for archive in sorted(folder.iterdir()):
            for python in PYTHONS:
                install(archive, python, Path(scratch))
    if lines:
        raise SystemExit("\n".join(["not ready for a release:", *lines]))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
