"""The layout's promises: import direction, layers, and no package that would shadow Hugging Face datasets."""

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
ROOMS = {
    "hgpo_train": [
        {"settings", "assignments"},  # what truly everything shares
        {"advantages", "models"},
        {"analysis", "policies"},
        {"rollout"},
        {"evaluation"},
        {"training"},
        {"cli"},
    ],
    "hgpo_envs/alfworld": [{"engine"}, {"data"}, {"players"}, {"generation"}, {"reference"}],
    "hgpo_envs/webshop": [
        {"records"},
        {"search"},
        {"catalogue"},
        {"engine"},
        {"bundled"},
        {"data", "players"},
        {"generation"},
        {"reference"},
    ],
}
"""The rooms of a package, layer by layer from the bottom: none imports from its own layer's other rooms or above."""


def imported(source: str) -> set[str]:
    """The packages that a module imports, anywhere in it."""
    return {name.split(".")[0] for name in imported_modules(source)}


def imported_modules(source: str) -> set[str]:
    """What a module imports, by dotted name: at its top, in functions and for types alone."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_of(package: str) -> set[str]:
    folder = ROOT / package
    return {
        path.stem
        for path in folder.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }


def test_datasets_is_no_package() -> None:
    assert not (ROOT / "datasets" / "__init__.py").exists()


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str) -> None:
    modules = sorted(LAYERS[layer].rglob("*.py"))
    assert modules
    for module in modules:
        wrong = imported(module.read_text("utf-8")) & FORBIDDEN[layer]
        assert not wrong, f"{module.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_has_a_layer(package: str) -> None:
    assert rooms_of(package) == set().union(*ROOMS[package])


def test_hgpo_train_has_six_layers_at_most() -> None:
    assert len(ROOMS["hgpo_train"]) - 1 <= 6


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_from_layers_below(package: str) -> None:
    layer = {room: number for number, rooms in enumerate(ROOMS[package]) for room in rooms}
    dotted = package.replace("/", ".")
    for module in sorted((ROOT / package).rglob("*.py")):
        room = module.relative_to(ROOT / package).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for name in imported_modules(module.read_text("utf-8")):
            if not name.startswith(f"{dotted}."):
                continue
            other = name.removeprefix(f"{dotted}.").split(".")[0]
            if other in layer and other != room:
                assert layer[other] < layer[room], f"{module.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("layer", LAYERS)
def test_packages_are_typed(layer: str) -> None:
    assert (LAYERS[layer] / "py.typed").exists()
