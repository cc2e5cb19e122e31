"""Evaluates HGPO's environment with verifiers' own client and prints the results, in a Python that has both.

python verifiers_player.py URL ENVIRONMENT TASKS ROLLOUTS RUN [OPTIONS]      the key is in the variable KEY_OF_TEST
"""

import asyncio
import json
import sys

import verifiers as vf
from verifiers.types import ClientConfig

from hgpo_verifiers import write_steps

url, environment, tasks, rollouts, run, *options = sys.argv[1:]
env = vf.load_environment(
    "hgpo-verifiers",
    environment=environment,
    tasks=int(tasks),
    system_prompt="You are a player.",
    **json.loads("".join(options) or "{}"),
)
client = ClientConfig(api_key_var="KEY_OF_TEST", api_base_url=url, max_retries=0)
results = asyncio.run(
    env.evaluate(
        client,
        "tiny",
        num_examples=int(tasks),
        rollouts_per_example=int(rollouts),
        state_columns=["hgpo_steps", "trajectory"],
    )
)
outputs = results["outputs"]
write_steps(outputs, run, environment=environment)
names = ("example_id", "reward", "metrics", "stop_condition", "hgpo_steps")
shown = [
    {
        **{name: output[name] for name in names},
        "failed": output["error"] is not None,
        "steps": [{name: step[name] for name in ("reward", "advantage", "extras")} for step in output["trajectory"]],
    }
    for output in outputs
]
json.dump(shown, sys.stdout)
