"""Count the tokens of an update on conversations: each step a row of its own, or one sequence per trajectory.

    python -m benchmarks conversations

The explorer plays the bundled tasks with prompts of both styles; a tokenizer of 2,000 tokens is trained on their texts.
`memory` shows the last two steps in each prompt, and shares nothing. No model runs: the counts are exact.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.runner import Row
from hgpo_train.models.tiny import train_tokenizer
from hgpo_train.rollout import collect
from hgpo_train.training.config import SftConfig, replace
from hgpo_train.training.sft import demonstrations, tokenise
from hgpo_train.training.update.batches import samples_from_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENTS: Final = ("HGPO/ALFWorld-v0", "HGPO/WebShop-v0")


def run(tasks: int = 48) -> Iterator[Row]:
    """Count the tokens of each style."""
    for env_id in ENVIRONMENTS:
        steps = {}
        with tempfile.TemporaryDirectory() as folder:
            for style in ("memory", "chat"):
                out = Path(folder) / style
                collect(
                    env_id,
                    "explorer",
                    out=out,
                    tasks=tasks,
                    group_size=2,
                    seed=1,
                    prompt_style=style,
                )
                steps[style] = demonstrations(out, replace(SftConfig(), rows="all"))
        texts = [text for table in steps.values() for text in table["prompt"]]
        tokenizer = train_tokenizer(texts, 2000)
        for style, table in steps.items():
            tokens = tokenise(table, tokenizer, 1 << 20, {"prompt_style": style})
            samples = samples_from_steps(tokens, share_prefixes=True)
            yield Row(
                f"tokens of {len(table)} steps as sequences",
                int(samples.sequence_length.sum()),
                "tokens",
                rival=("as rows", int(samples.start[-1])),
                case=f"{env_id}, {style}",
            )
