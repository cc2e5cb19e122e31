"""Count the tokens of an update on conversations: each step a row of its own, or one sequence per trajectory.

    python benchmarks/conversations.py

The explorer plays the bundled tasks with prompts of both styles; a tokenizer of 2,000 tokens is trained on their texts.
`memory` shows the last two steps in each prompt, and shares nothing. No model runs: the counts are exact.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from record import make_parser, print_table, store

from hgpo_train.models.tiny import train_tokenizer
from hgpo_train.rollout import collect
from hgpo_train.training.config import SftConfig, replace
from hgpo_train.training.sft import demonstrations, tokenise
from hgpo_train.training.update.batches import samples_from_steps

ENVIRONMENTS: Final = ("HGPO/ALFWorld-v0", "HGPO/WebShop-v0")


def count(env_id: str, tasks: int) -> dict[str, dict[str, float]]:
    """Return the number of steps and tokens of each style."""
    config = replace(SftConfig(), rows="all")
    with tempfile.TemporaryDirectory() as folder:
        rows = {}
        for style in ("memory", "chat"):
            run = Path(folder) / style
            collect(env_id, "explorer", out=run, tasks=tasks, group_size=2, seed=1, prompt_style=style)
            rows[style] = demonstrations(run, config)
    tokenizer = train_tokenizer([text for table in rows.values() for text in table["prompt"]], 2000)
    figures = {}
    for style, table in rows.items():
        tokens = tokenise(table, tokenizer, 1 << 20, {"prompt_style": style})
        samples = samples_from_steps(tokens, share_prefixes=True)
        apart, shared = int(samples.start[-1]), int(samples.sequence_length.sum())
        figures[style] = {"steps": len(table), "rows": apart, "sequences": shared, "ratio": round(apart / shared, 2)}
    return figures


def main() -> None:
    """Count and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", type=int, default=48)
    given = parser.parse_args()
    figures = {env_id: count(env_id, given.tasks) for env_id in ENVIRONMENTS}
    titles = ("steps", "tokens as rows", "as sequences", "ratio")
    print_table(
        {"environment": env_id, "prompts": style, **dict(zip(titles, values.values(), strict=True))}
        for env_id, styles in figures.items()
        for style, values in styles.items()
    )
    print(store("conversations", figures, keep=given.keep))


if __name__ == "__main__":
    main()
