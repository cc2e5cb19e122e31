"""`hgpo view`: look at runs in a browser or a terminal, or write a page that shows a selection of them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.view.sources import Source


def view(
    run: list[str],
    /,
    *,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    tasks: int | None = None,
    task: list[str] | None = None,
    max_mb: float = 8.0,
    overwrite: options.Overwrite = False,
    estimator: Annotated[list[str] | None, Parameter(alias="-e")] = None,
    terminal: bool = False,
    host: str = "127.0.0.1",
    port: int = 0,
    browser: Annotated[bool, Parameter(negative="--no-browser")] = True,
) -> None:
    """Look at tasks, groups, steps and advantages in a browser or a terminal, also while a run is being written.

    Args:
        run: Runs, folders of runs, Parquet files, or quoted patterns.
        out: Write one page that needs no server.
        tasks: Number of tasks of each run in the page of --out. Default: all that fit.
        task: A task id for the page instead; may be repeated.
        max_mb: Largest size of the page, in MB; further tasks are left out.
        overwrite: Whether to replace a page.
        estimator: A further estimator, module:function; for --out those to compute, for --terminal those to compare.
        terminal: Show the runs here, without a browser.
        host: Address to listen on. Default: only this machine.
        port: Port to listen on; 0 for a free one.
        browser: Open the page in the browser.
    """
    from hgpo_envs.errors import InputError
    from hgpo_train.view.sources import open_sources

    if terminal and out is not None:
        raise InputError("--terminal has no meaning with --out; leave one of them out")
    if task and out is None:
        raise InputError("--task selects the tasks of a page; name one with --out")
    if terminal:
        _show(open_sources(run), estimator or ())
        return
    sources = open_sources(run, wait=out is None)
    for name in run:
        common.note_runs(name, "shown, each by itself")
    if out is None:
        from hgpo_train.view.app import serve

        for waiting in filter(None, (source.problem() for source in sources)):
            print(
                f"{waiting}; the page shows the run as soon as it can be read.",
                file=sys.stderr,
            )
        serve(
            sources,
            host=host,
            port=port,
            open_browser=browser,
            estimators=estimator or (),
        )
        return
    from hgpo_envs.files.atomic import making_folder
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import ProgressBars
    from hgpo_train.view.page import MB, write_page

    common.check_output_file(out, "page.html", overwrite=overwrite)
    with making_folder(out.absolute().parent), ProgressBars() as bars:
        page = write_page(
            sources,
            out,
            tasks=tasks,
            task_ids=task or (),
            estimators=estimator or (),
            max_mb=max_mb,
            progress=partial(bars.show, "tasks"),
        )
    for problem in page.problems:
        print(f"warning: {problem}", file=sys.stderr)
    size = f"{counted(page.tasks, 'task')}, {page.bytes / MB:.1f} MB"
    if page.left_out:
        size += f"; {counted(page.left_out, 'task')} did not fit into {max_mb:g} MB (--max-mb)"
    print(f"{out}: {size}. Open it in a browser.")


def _show(sources: list[Source], estimators: Sequence[str]) -> None:
    """Show runs in this terminal until the viewer is left."""
    from hgpo_envs.errors import InputError
    from hgpo_train.view.terminal import TerminalViewer

    app = TerminalViewer(sources, estimators)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError(
            "--terminal: expected a terminal, received a pipe or a file; use -o to write a page"
        )
    app.run()
    if app.return_code:
        sys.exit(app.return_code)
