"""All scenarios by name. Add a scenario for every new command or function that writes files."""

from tests.faults import checkpoints, data, tables
from tests.faults.harness import Scenario

SCENARIOS: dict[str, Scenario] = {one.name: one for one in (*tables.SCENARIOS, *data.SCENARIOS, *checkpoints.SCENARIOS)}
