"""`hgpo arena`: estimators compared by what policies learn from them, in worlds of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations


def arena(
    action: Literal["add"] | None = None,
    estimator: str | None = None,
    /,
    *,
    estimators: Annotated[list[str] | None, Parameter(alias="-e")] = None,
    worlds: Annotated[list[str] | None, Parameter(alias="-w")] = None,
    out: Path = Path("runs/arena"),
    page: Annotated[Path | None, Parameter(alias="-o")] = None,
    seeds: int | None = None,
    overwrite: options.Overwrite = False,
    listing: Annotated[bool, Parameter("--list")] = False,
) -> None:
    """Compare estimators by what policies learn from them, in worlds with known truth.

    hgpo arena measures what is missing in its folder, and hgpo arena -o page.html also writes the page. hgpo arena add
    module:function measures an estimator of your own beside the reference.

    Args:
        action: add, to measure an estimator beside what is there.
        estimator: The estimator to add, as module:function.
        estimators: Estimators, as hgpo:history_length=4,gagpo. Default: all.
        worlds: A world (--list); may be repeated. Default: all that are installed.
        out: The arena's folder; what it has is kept.
        page: The page to write from the folder's results.
        seeds: Number of seeds that learn. Default: 24.
        overwrite: Whether to measure again what is there.
        listing: List worlds and estimators and exit.
    """
    from hgpo_envs.errors import InputError
    from hgpo_research.arena import arena as running
    from hgpo_research.arena.page import write_page
    from hgpo_research.arena.ranking import REFERENCE
    from hgpo_research.arena.worlds import WORLDS
    from hgpo_train.cli.display import ProgressBars, print_table

    if listing:
        print_table(
            ["world", "environment"],
            [[name, world.env] for name, world in WORLDS.items()],
            texts=2,
        )
        print_table(["estimators"], [[name] for name in running.ESTIMATORS], texts=1)
        return
    if (action == "add") != (estimator is not None) or (estimator and estimators):
        raise InputError(
            "expected hgpo arena add module:function, or hgpo arena -e ESTIMATORS"
        )
    if page is not None:
        if page.suffix != ".html":
            raise InputError(f"--page {page}: expected a file that ends in .html")
        common.check_output_path(page, "--page")
    names = [
        name.strip()
        for text in estimators or ()
        for name in text.split(",")
        if name.strip()
    ]
    if estimator is not None:
        names = [estimator]
    # Everything is compared with the reference.
    chosen = (
        list(dict.fromkeys([REFERENCE, *names])) if names else list(running.ESTIMATORS)
    )
    known = running.worlds_of(worlds)
    advice = "What was measured is kept; run the same command again for the rest."
    with common.resumable(advice), ProgressBars() as bars:
        bar = bars.add_task("arena", total=len(known) * len(chosen))

        def show(text: str, done: bool) -> None:
            bars.update(bar, description=text, advance=int(done))

        results = running.arena(
            out,
            chosen,
            list(known),
            seeds=running.SEEDS if seeds is None else seeds,
            overwrite=overwrite,
            progress=show,
        )
    left = [name for name in WORLDS if name not in known and not worlds]
    for name in left:
        print(f"Left out: {name}, which needs {WORLDS[name].install}.")
    if page is not None:
        write_page(results, running.read(out, "costs"), page, out / "worlds")
        print(f"The page is in {page}.")
    else:
        # The same words again: what was measured is kept, and nothing else is measured.
        again = {"-e": estimators, "-w": worlds, "--seeds": seeds and [seeds]}
        words: list[object] = ["arena", *([action, estimator] if estimator else [])]
        for option, values in again.items():
            words += [word for value in values or () for word in (option, value)]
        words += ["--out", out, "-o", "arena.html"]
        print(f"Results are in {out}/results. {common.next_commands(words)}")
