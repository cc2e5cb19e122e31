"""The packages' layout: import direction, layers, exported names, and what importing a package imports."""

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from command import python

ROOT = Path(__file__).parent.parent
LAYERS = {
    "hgpo_envs": ROOT / "hgpo_envs",
    "hgpo_datasets": ROOT / "datasets/hgpo_datasets",
    "hgpo_train": ROOT / "hgpo_train",
}
FORBIDDEN = {
    "hgpo_envs": {"hgpo_datasets", "hgpo_train", "hgpo_research", "torch"},
    "hgpo_datasets": {"hgpo_train", "hgpo_research", "torch"},
    "hgpo_train": {"hgpo_research"},
}
ROOMS = {
    "hgpo_train": [
        {"field_docs"},  # read by help, which imports nothing else
        # shared by all layers
        {"settings", "lazy_names", "local_server", "proportions", "registry"},
        {"resampling"},
        # panels know environments and settings, and nothing of how they are played
        {"measures", "models", "panels"},
        {"scores"},
        {"advantages"},
        {"policies"},
        {"rollout"},
        {"analysis", "evaluation"},
        {"training", "view"},
        {"cli"},
    ],
    "hgpo_train/rollout": [
        {"row", "env_handle", "branch_rules"}, {"outcomes", "branch_points"}, {"failures", "slots"},
        {"plan", "workers"}, {"tally"}, {"trajectory"}, {"groups", "kept_groups"}, {"collector"}, {"branch_groups"},
        {"run"}, {"sessions", "progress_line"}, {"collection"},
        {"branching"},
    ],
    "hgpo_train/training": [
        {"config", "display", "metrics", "verify_run"}, {"data", "memory_plan", "progress", "tracking"},
        {"run_folder", "update"},
        {"checkpoint", "evaluations", "scoring", "stages"},
        {"card", "gpu_check", "sft"}, {"trainer", "warm_start"},
        {"first_training", "saved_tables"},
    ],
    "hgpo_envs/alfworld": [{"engine"}, {"data"}, {"players"}, {"generation"}, {"reference"}, {"environment"}],
    "integrations/appworld/hgpo_appworld": [
        {"apps", "data", "responses"}, {"engine"}, {"players"}, {"generation", "reference"}, {"environment", "commands"}
    ],
    "hgpo_envs/webshop": [
        {"records"}, {"search"}, {"catalogue"}, {"engine"}, {"bundled"}, {"data", "players"}, {"generation"},
        {"reference"}, {"environment"},
    ],
}  # fmt: skip
"""The rooms of a package, layer by layer from the bottom: none imports from its own layer's other rooms or above."""
CODE = ["hgpo_envs", "datasets", "hgpo_train", "integrations", "research", "tests"]


def imported(source):
    """Return the packages that a module imports anywhere."""
    return {name.split(".")[0] for name in imported_modules(source)}


def imported_modules(source):
    """Return the dotted names that a module imports at its top, in functions and for type checking."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_of(package):
    folder = ROOT / package
    return {
        path.stem
        for path in folder.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__")
        or (path / "__init__.py").exists()
    }


def test_datasets_is_no_package():
    assert not (ROOT / "datasets" / "__init__.py").exists()


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer):
    modules = sorted(LAYERS[layer].rglob("*.py"))
    assert modules
    for module in modules:
        wrong = imported(module.read_text("utf-8")) & FORBIDDEN[layer]
        assert not wrong, f"{module.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_has_a_layer(package):
    assert rooms_of(package) == set().union(*ROOMS[package])


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_from_layers_below(package):
    layer = {
        room: number for number, rooms in enumerate(ROOMS[package]) for room in rooms
    }
    dotted = package.removeprefix("integrations/appworld/").replace("/", ".")
    for module in sorted((ROOT / package).rglob("*.py")):
        room = module.relative_to(ROOT / package).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for name in imported_modules(module.read_text("utf-8")):
            if not name.startswith(f"{dotted}."):
                continue
            other = name.removeprefix(f"{dotted}.").split(".")[0]
            if other in layer and other != room:
                assert layer[other] < layer[room], (
                    f"{module.relative_to(ROOT)} imports {name}"
                )


@pytest.mark.parametrize(
    "folder", [*CODE, "benchmarks", "docs", "examples", "notebooks", "tools"]
)
def test_a_module_has_at_most_600_lines(folder):
    """A longer one has several subjects (CONTRIBUTING.md)."""
    lengths = {
        str(path.relative_to(ROOT)): path.read_bytes().count(b"\n")
        for path in (ROOT / folder).rglob("*.py")
        if ".venv" not in path.parts
    }
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > 600} == {}


@pytest.mark.slow
@pytest.mark.parametrize("folder", CODE)
def test_tuple_assignments_swap_or_unpack(folder):
    """`a, b = x, y` is two ideas in a line, unless it swaps them (CONTRIBUTING.md)."""
    packed = []
    for path in (ROOT / folder).rglob("*.py"):
        if ".venv" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Assign) or not isinstance(
                node.value, ast.Tuple
            ):
                continue
            if isinstance(node.targets[0], ast.Tuple) and not swaps(
                node.targets[0], node.value
            ):
                packed.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert packed == []


def swaps(target, value):
    """Return whether a later value reads what an earlier target replaces."""
    replaced = {ast.unparse(each) for each in target.elts}
    read = {ast.unparse(each) for item in value.elts for each in ast.walk(item)}
    return bool(replaced & read)


def test_every_poe_command_in_the_docs_and_in_ci_exists():
    tasks = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["poe"][
        "tasks"
    ]
    files = [
        "CONTRIBUTING.md",
        "docs/dependencies.md",
        ".ci/run",
        ".github/workflows/ci.yml",
    ]
    named = {
        name
        for file in files
        for name in re.findall(r"\bpoe ([a-z-]+)", (ROOT / file).read_text("utf-8"))
    }
    assert named == set(tasks)


@pytest.mark.parametrize(
    "package",
    ["hgpo_train", "hgpo_train.rollout", "hgpo_train.advantages", "hgpo_datasets"],
)
def test_every_exported_name_exists(package):
    module = import_module(package)
    assert module.__all__ == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="colect"):
        module.colect  # noqa: B018


@pytest.mark.parametrize("package", ["hgpo_train", "hgpo_train.rollout"])
def test_importing_a_package_imports_nothing_heavy(package):
    probe = f"import sys, {package}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = python(probe)
    heavy = {
        "numpy",
        "polars",
        "pyarrow",
        "torch",
        "gymnasium",
        "hgpo_envs",
        "hgpo_datasets",
    }
    assert not heavy & set(done.stdout.split())
