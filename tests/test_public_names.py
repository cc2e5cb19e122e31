"""The names that packages export: each exists, and importing the package is cheap."""

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = ["hgpo_train", "hgpo_train.rollout", "hgpo_train.advantages", "hgpo_datasets"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_exists(package: str) -> None:
    module = import_module(package)
    assert module.__all__ == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="colect"):
        module.colect  # noqa: B018


@pytest.mark.parametrize("package", ["hgpo_train", "hgpo_train.rollout"])
def test_importing_a_package_imports_nothing_heavy(package: str) -> None:
    probe = f"import sys, {package}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    heavy = {"numpy", "polars", "pyarrow", "torch", "gymnasium", "hgpo_envs", "hgpo_datasets"}
    assert not heavy & set(done.stdout.split())
