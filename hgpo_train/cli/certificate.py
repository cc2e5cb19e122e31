"""`hgpo certificate check`: recompute the figures of a certificate, and replay its episodes."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations

from cyclopts.types import NonNegativeInt  # noqa: TC002 - cyclopts reads the annotations

from hgpo_train.cli import common, options  # cyclopts reads the annotations


def check(
    file: Path,
    /,
    *,
    run: Path | None = None,
    replay: NonNegativeInt = 0,
    panel: str | None = None,
    data: Path | None = None,
    as_json: options.Json = False,
) -> None:
    """Recompute every figure of a certificate, and compare it with its panel, its run and the environment.

    The exit code is 1 if anything differs, each in a line.

    Args:
        file: The certificate, or the run's folder that contains it.
        run: The run that it is of, whose table is compared.
        replay: Number of episodes, drawn at random, whose recorded actions are played again; needs --run.
        panel: The panel. Default: the one of the certificate's title.
        data: Where the panel's data are. Default: the bundled data, or the environment's usual places.
        as_json: Whether to print JSON.
    """
    from dataclasses import asdict

    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import print_json
    from hgpo_train.evaluation.certificate import NAME
    from hgpo_train.evaluation.certificate_check import (
        check_certificate,
        read_certificate,
    )

    path = file / NAME if file.is_dir() else file
    result = check_certificate(path, run, replay=replay, panel=panel, data=data)
    if as_json:
        print_json({"ok": not result.problems, **asdict(result)})
        sys.exit(1 if result.problems else 0)
    for line in result.notes:
        print(f"note: {line}", file=sys.stderr)
    summary = f"{path} is not what it should be"
    if result.is_other_run:
        summary = f"{run} is not the run of {path}: it was played with another panel or policy"
    common.print_problems(result.problems, summary)
    compared = ["its figures follow from its episodes"]
    if run is not None:
        compared.append("they are those of the run")
    if replay:
        compared.append(f"{counted(result.replayed, 'episode')} replayed alike")
    print(f"{read_certificate(path).panel.title}: {', '.join(compared)}.")
    if run is None:
        given = common.given_options({"--panel": panel, "--data": data})
        print(
            common.next_commands(
                ("certificate", "check", path, "--run", "RUN", "--replay", 10, *given)
            )
        )
