"""Gives the steps of saved traces their advantages, in a Python that has verifiers, and prints those of the nodes.

python verifiers_advantages.py TRACES.jsonl
"""

import json
import sys
from pathlib import Path

from verifiers.v1 import WireEpisode

from hgpo_verifiers import assign_advantages

groups = {}
for line in Path(sys.argv[1]).read_text().splitlines():
    episode = WireEpisode.model_validate_json(line)
    groups.setdefault(episode.task.data.id, []).append(episode)
found = {}
for episodes in groups.values():
    traces = [trace for episode in episodes for trace in episode.traces]
    for trace in traces:
        for node in trace.nodes:
            if node.sampled:
                node.token_ids = [7, 8, 9]
                # a token of the template, and two that were sampled
                node.mask = [False, True, True]
    assign_advantages(episodes, "hgpo")
    for trace in traces:
        found[trace.id] = [branch.advantages for branch in trace.branches]
json.dump(found, sys.stdout)
