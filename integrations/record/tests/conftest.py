"""Without hgpo-record, no test runs."""

from importlib.util import find_spec

collect_ignore_glob = ["programs/*"] if find_spec("hgpo_record") else ["*"]
