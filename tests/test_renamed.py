"""docs/renamed.md: every new name that it lists exists."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs/renamed.md").read_text()
MODULES = re.findall(r"^\| `[\w.]+` \| `(hgpo_[\w.]+)` \|$", PAGE, re.MULTILINE)
NAMES = re.findall(r"^\| `hgpo_[\w.]+` \| `\w+` \| `([\w.]+)` \|$", PAGE, re.MULTILINE)


def test_the_page_has_modules_and_names() -> None:
    assert len(MODULES) > 50
    assert len(NAMES) > 100


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_there(name: str) -> None:
    path = name.replace(".", "/")
    root = Path(__file__).parent.parent
    assert any((root / base / f"{path}{end}").exists() for base in ("", "datasets") for end in (".py", "/__init__.py"))


@pytest.mark.parametrize("name", NAMES)
def test_names_are_there(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)
