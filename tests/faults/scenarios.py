"""What writes, and how each is checked. A new way of writing is one more entry of SCENARIOS."""

from tests.faults import checkpoints, data, tables
from tests.faults.harness import Scenario

SCENARIOS: dict[str, Scenario] = {one.name: one for one in (*tables.SCENARIOS, *data.SCENARIOS, *checkpoints.SCENARIOS)}
