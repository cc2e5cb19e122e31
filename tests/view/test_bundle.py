"""The built page in the package: it belongs to the sources, and needs nothing from elsewhere."""

import gzip
import hashlib
import re
from pathlib import Path

from hgpo_train.view.page import STATIC

VIEWER = Path(__file__).parents[2] / "viewer"


def test_the_bundle_belongs_to_the_sources():
    """As `viewer/build.mjs` computes it. Otherwise: cd viewer && npm ci && npm run build."""
    digest = hashlib.sha256()
    names = sorted(path.name for path in (VIEWER / "src").iterdir())
    for name in ["package-lock.json", "build.mjs", *(f"src/{name}" for name in names)]:
        digest.update(f"{name}\n".encode() + (VIEWER / name).read_bytes() + b"\n")
    found = re.match(
        rb"/\* sources: sha256 ([0-9a-f]{64}) \*/", (STATIC / "app.js").read_bytes()
    )
    assert found
    assert found[1].decode() == digest.hexdigest(), (
        "build the page again: cd viewer && npm ci && npm run build"
    )
    assert (STATIC / "index.html").read_bytes() == (
        VIEWER / "src/index.html"
    ).read_bytes()


def test_the_bundle_is_small():
    files = [
        (STATIC / name).read_bytes() for name in ("index.html", "app.js", "app.css")
    ]
    assert sum(len(gzip.compress(data)) for data in files) < 1 << 20


def test_the_page_names_no_other_place():
    """Names of XML namespaces are the only addresses."""
    for name in ("index.html", "app.js", "app.css"):
        address = rb"""(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s"'`)]*"""
        addresses = set(
            re.findall(address, (STATIC / name).read_bytes(), re.IGNORECASE)
        )
        # a licence names its project
        comments = {
            b"//github.com/leeoniya/uPlot",
            b"https://github.com/leeoniya/uPlot",
        }
        assert {
            one
            for one in addresses
            if not one.startswith((b"http://www.w3.org/", *comments))
        } == set()
