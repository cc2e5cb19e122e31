"""`hgpo card`: the model card of a training run's checkpoint."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Annotated

from cyclopts import Parameter


def card(
    run: Path,
    /,
    *,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    iteration: int | None = None,
) -> None:
    """Write the model card of a checkpoint: what was trained and how, and its success on held-out tasks.

    The card has the head that Hugging Face reads. With --out, the commands that upload the model are printed.

    Args:
        run: The folder of a run of hgpo train.
        out: The file to write. Default: print the card.
        iteration: The iteration of the checkpoint. Default: the best on held-out tasks, or the newest.
    """
    from hgpo_envs.files.atomic import write_file
    from hgpo_train.training.card import checkpoint_of, run_card
    from hgpo_train.training.run_folder import CONFIG

    checkpoint = checkpoint_of(run, iteration)
    text = run_card(run, checkpoint)
    if out is None:
        print(text, end="")
        return
    write_file(out, text.encode())
    print(f"The card is {out}. Next, with the name of your repository:")
    uploads = [(checkpoint, ".", "--exclude", "trainer/*"), (out, "README.md"), (run / CONFIG, CONFIG)]
    for upload in uploads:
        print(f"    hf upload ME/NAME {shlex.join(map(str, upload))}")
