"""The command that adds an extra or another distribution to an installation, wherever that came from."""

import importlib.metadata
import json
from types import SimpleNamespace

import pytest

from hgpo_envs import plugins

GIT = {
    "url": "https://example.org/hgpo.git",
    "vcs_info": {"vcs": "git", "commit_id": "0" * 40},
}
RECORDS = {
    "an index": (None, "pip install 'hgpo[train]'", "pip install hgpo-tau2"),
    "a checkout": (
        {"url": "file:///home/me/my%20work", "dir_info": {}},
        "pip install '/home/me/my work[train]'",
        "pip install '/home/me/my work/integrations/tau2'",
    ),
    "an editable checkout": (
        {"url": "file:///src", "dir_info": {"editable": True}},
        "pip install -e '/src[train]'",
        "pip install -e /src/integrations/tau2",
    ),
    "a repository": (
        GIT,
        "pip install 'hgpo[train] @ git+https://example.org/hgpo.git'",
        "pip install 'hgpo-tau2 @ git+https://example.org/hgpo.git#subdirectory=integrations/tau2'",
    ),
    "a wheel": (
        {"url": "file:///tmp/hgpo-0.2.0-py3-none-any.whl", "archive_info": {}},
        "pip install 'hgpo[train] @ file:///tmp/hgpo-0.2.0-py3-none-any.whl'",
        None,
    ),
}


@pytest.mark.parametrize("origin", RECORDS)
def test_an_installation_is_extended_from_where_it_came_from(origin, monkeypatch):
    record, extra, distribution = RECORDS[origin]
    text = None if record is None else json.dumps(record)
    found = SimpleNamespace(
        read_text=lambda name: text if name == "direct_url.json" else None
    )
    monkeypatch.setattr(plugins, "installed_distribution", lambda name: found)
    assert plugins.install_command("train") == extra
    if distribution:
        assert plugins.install_command(folder="integrations/tau2") == distribution


def test_without_an_installation_the_index_is_named(monkeypatch):
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(plugins, "installed_distribution", missing)
    assert plugins.install_command("view") == "pip install 'hgpo[view]'"
