"""The layout's promises: import direction, and no package that would shadow Hugging Face datasets."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = {
    "hgpo_envs": ROOT / "hgpo_envs",
    "hgpo_datasets": ROOT / "datasets/hgpo_datasets",
    "hgpo_train": ROOT / "hgpo_train",
}
FORBIDDEN = {
    "hgpo_envs": {"hgpo_datasets", "hgpo_train", "torch"},
    "hgpo_datasets": {"hgpo_train", "torch"},
    "hgpo_train": set(),
}


def imported(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_datasets_is_no_package() -> None:
    assert not (ROOT / "datasets" / "__init__.py").exists()


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str) -> None:
    modules = sorted(LAYERS[layer].rglob("*.py"))
    assert modules
    for module in modules:
        wrong = imported(module.read_text("utf-8")) & FORBIDDEN[layer]
        assert not wrong, f"{module.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("layer", LAYERS)
def test_packages_are_typed(layer: str) -> None:
    assert (LAYERS[layer] / "py.typed").exists()
