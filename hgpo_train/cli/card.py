"""`hgpo card`: what a reader needs to believe a run, on one page; and the check of such a page."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUESTION: Final = 1000
"""Characters of a question."""


def card(
    run: Path,
    /,
    *,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    question: str | None = None,
    iteration: int | None = None,
    as_json: options.Json = False,
) -> None:
    """Write the card of a run: what a reader needs to believe it, on one page, with the head that Hugging Face reads.

    It has the settings, success under every reporting rule, what was dropped, cost, files, and what is not known. With
    --out, the commands that check and upload it are printed. To check one: hgpo card check CARD --run RUN

    Args:
        run: A folder of hgpo train, hgpo eval or hgpo rollout. One that is called check: ./check.
        out: The file to write. Default: print the card.
        question: What the run was to find out.
        iteration: Of hgpo train: the iteration of the checkpoint. Default: the best on held-out tasks, or the newest.
        as_json: Whether to write JSON: everything, with all settings, task ids and files.
    """
    import orjson

    from hgpo_envs.errors import one_line
    from hgpo_envs.files.atomic import making_folder, write_file
    from hgpo_envs.files.untrusted_files import writing
    from hgpo_train.cli.display import print_json
    from hgpo_train.evaluation.card_page import card_page

    document = _document(
        run, None if question is None else one_line(question, _QUESTION), iteration
    )
    if out is None:
        if as_json:
            print_json(document)
        else:
            print(card_page(document), end="")
        return
    text = (
        orjson.dumps(document, option=orjson.OPT_INDENT_2)
        if as_json
        else card_page(document).encode()
    )
    with writing(out), making_folder(out.absolute().parent):
        write_file(out, text)
    print(
        f"The card is {out}. {common.next_commands(('card', 'check', out, '--run', run))}"
    )
    if not as_json:
        print("Or, with the name of your repository:")
        for upload in _uploads(document, run, out):
            print(f"    hf upload ME/NAME {shlex.join(map(str, upload))}")


def _document(run: Path, question: str | None, iteration: int | None) -> dict[str, Any]:
    """Return the card of a run of any kind."""
    from hgpo_envs.errors import InputError
    from hgpo_train.evaluation.card import run_card
    from hgpo_train.training.run_folder import CONFIG

    if (run / CONFIG).exists():
        from hgpo_train.training.card import checkpoint_of, training_card

        return training_card(run, checkpoint_of(run, iteration), question)
    if iteration is not None:
        raise InputError(
            f"--iteration: expected a run of hgpo train, received {run}; remove the option"
        )
    return run_card(run, question)


def _uploads(document: Mapping[str, Any], run: Path, page: Path) -> list[list[object]]:
    """Return the arguments of `hf upload` that publish a checkpoint, or a run as a data set, with its page."""
    from hgpo_train.training.run_folder import CHECKPOINTS, CONFIG

    if document["kind"] == "training":
        checkpoint = run / CHECKPOINTS / f"{document['iteration']:06d}"
        return [
            [checkpoint, ".", "--exclude", "trainer/*"],
            [page, "README.md"],
            [run / CONFIG, CONFIG],
        ]
    return [
        [run, ".", "--repo-type", "dataset"],
        [page, "README.md", "--repo-type", "dataset"],
    ]


def check_card(
    card: Path,
    /,
    *,
    run: Path,
) -> None:
    """Compute every figure of a card again from its run, and name those that differ. The exit code is then 1.

    The head and what is under "Not known" are the author's and are not compared.

    Args:
        card: The page, or the JSON document, that hgpo card wrote.
        run: The run's folder.
    """
    from hgpo_train.evaluation.card_page import card_problems, read_card
    from hgpo_train.training.run_folder import CONFIG

    found, given = read_card(card)
    # a run of another kind has none
    iteration = given.iteration if (run / CONFIG).exists() else None
    problems = card_problems(_document(run, given.question, iteration), found)
    common.print_problems(problems, f"{card} is not the card of {run}")
    print(
        f"Every figure of {card} is that of {run}. {common.next_commands(('verify', run))}"
    )
