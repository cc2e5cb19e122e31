"""Without hgpo-openenv, no test runs. OpenEnv's client is a program of an environment of its own."""

from importlib.util import find_spec

collect_ignore_glob = ["openenv_client.py"] if find_spec("hgpo_openenv") else ["*"]
