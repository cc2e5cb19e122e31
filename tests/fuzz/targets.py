"""All functions that read untrusted bytes: responses, commands, files, settings, replies of servers."""

from tests.fuzz import files, tables, texts
from tests.fuzz.engine import Target

TARGETS: dict[str, Target] = {target.name: target for target in (*texts.TARGETS, *tables.TARGETS, *files.TARGETS)}
