"""`hgpo score`: score the steps of a saved run with a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Annotated

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations


def _list() -> None:
    """Print the scores, their columns and what they are."""
    from hgpo_train.cli.display import print_table
    from hgpo_train.scores import get, names

    rows = [[name, ", ".join(get(name).columns), get(name).summary] for name in names()]
    print_table(["score", "columns", "summary"], rows, texts=3)


def score(
    run: Path | None = None,
    /,
    *,
    model: str | None = None,
    scores: Annotated[list[str] | None, Parameter("--score", alias="-s")] = None,
    reference: str | None = None,
    temperature: float | None = None,
    overrides: options.Overrides = None,
    overwrite: options.Overwrite = False,
    listing: Annotated[bool, Parameter("--list")] = False,
) -> None:
    """Score the steps of a saved run with a model, for estimators that read scores.

    Args:
        run: The folder of a run with token ids.
        model: The model: a folder, a run of hgpo train, or a Hugging Face name.
        scores: A score (--list), or module:object; may be repeated. Default: logprobs.
        reference: The model of reference_logprobs.
        temperature: Temperature of the scored distribution. Default: that of the run's rollouts.
        overrides: Settings of model and update.
        overwrite: Whether to replace scores of another model or temperature.
        listing: List scores and exit.
    """
    if listing:
        _list()
        return
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_envs.wording import counted
    from hgpo_train.advantages import get, names
    from hgpo_train.cli.display import ProgressBars
    from hgpo_train.models.device import choose_device
    from hgpo_train.training.config import load_config, replace
    from hgpo_train.training.scoring import score_run

    if run is None or model is None:
        raise InputError(
            "expected a run and its model: hgpo score RUN --model MODEL; hgpo score --list lists scores"
        )
    config = load_config(None, [f"model.path={model}", *(overrides or ())])
    # On a CPU, bfloat16 is no faster and less exact; on a GPU it is what runs are trained in.
    is_named = any(text.startswith("model.compute_dtype") for text in overrides or ())
    if not is_named and choose_device(config.model.device).type == "cpu":
        config = replace(config, model={"compute_dtype": "float32"})
    total = int(scan_steps(run).select(pl.len()).collect().item())
    advice = "Finished iterations are stored; run the same command again for the rest."
    with common.resumable(advice), ProgressBars() as bars:
        rows = score_run(
            run,
            scores or ["logprobs"],
            config,
            temperature=temperature,
            reference=reference,
            overwrite=overwrite,
            progress=partial(bars.advance, bars.add_task("score", total=total)),
        )
    # The estimators that read no other scores.
    chosen = {*(scores or ["logprobs"])}
    readers = [
        name
        for name in names(scored=True)
        if get(name).scores and chosen.issuperset(get(name).scores)
    ]
    following: list[tuple[object, ...]] = [
        ("advantages", run, "-e", name) for name in readers
    ]
    following = following or [("advantages", "--list")]
    print(
        f"{counted(rows, 'scored step')} in {run / 'scores'}. {common.next_commands(*following)}"
    )
