"""All functions that read untrusted bytes: responses, commands, files, archives, settings, replies of servers."""

from tests.fuzz import archives, files, tables, texts
from tests.fuzz.engine import Target

TARGETS: dict[str, Target] = {
    one.name: one for one in (*texts.TARGETS, *tables.TARGETS, *files.TARGETS, *archives.TARGETS)
}
