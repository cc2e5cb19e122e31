"""`hgpo train`: reinforcement learning from a configuration."""

from __future__ import annotations

import shlex
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hgpo_train.training.config import Config


def train(
    config: str | None = None,
    /,
    *,
    overrides: options.Overrides = None,
    out: Path | None = None,
    resume: bool = False,
    print_config: options.PrintConfig = False,
    plan: bool = False,
    card: str | None = None,
    steps: Path | None = None,
    advantages: Path | None = None,
    allow: options.Allow = None,
    list_configs: Annotated[bool, Parameter("--list")] = False,
) -> None:
    """Train a policy with reinforcement learning: iterate rollouts, advantages, updates and evaluation.

    Args:
        config: A TOML file, or a shipped configuration (--list).
        overrides: Settings.
        out: The run's folder. Default: runs/<config>.
        resume: Resume the run in the folder.
        print_config: Whether to print the settings instead.
        plan: Print the memory it needs; exit with 1 if too much.
        card: The card of --plan, such as H100-80, or GB.
        steps: Only update the policy, on this step table.
        advantages: With --steps: the table of hgpo advantages.
        allow: Code that may be imported.
        list_configs: List the shipped configurations and exit.
    """
    from hgpo_envs.errors import InputError
    from hgpo_train.cli.display import terminal
    from hgpo_train.settings import to_toml
    from hgpo_train.training.config import (
        SHIPPED,
        Config,
        configured_estimator,
        load_config,
    )

    console = terminal()
    if list_configs:
        for name, path in SHIPPED.items():
            about = (
                path.read_text(encoding="utf-8")
                .partition("\n")[0]
                .removeprefix("#")
                .strip()
            )
            console.print(f"[bold]{name}[/]", highlight=False)
            lines = textwrap.wrap(
                about, console.width, initial_indent="    ", subsequent_indent="    "
            )
            console.print("\n".join(lines), highlight=False, markup=False)
        print(common.next_commands(("train", "tiny-alfworld")))
        return
    folder = (
        out
        if out is not None
        else Path("runs") / (Path(config).stem if config else "train")
    )
    stored = folder / "config.toml"
    if config is None and resume:
        if not stored.exists():
            raise InputError(
                f"no run to resume in {folder}: expected the --out of an earlier hgpo train"
            )
        config = str(stored)
        allow = allow or []
    if config is None:
        raise InputError(
            "expected a configuration: a TOML file or a shipped name, see `hgpo train --list`"
        )
    settings = load_config(config, overrides or (), Config, allow)
    if print_config:
        configured_estimator(settings)  # what is printed can be run
        print(to_toml(settings, docs=True), end="")
    elif plan or card is not None:
        _print_plan(settings, card, console)
    else:
        _run(
            settings, folder, console, steps=steps, advantages=advantages, resume=resume
        )


def _print_plan(settings: Config, card: str | None, console: Console) -> None:
    from hgpo_train.models.device import choose_device
    from hgpo_train.training.memory_plan import (
        CARDS,
        first_card,
        meta_model,
        named_card,
        plan_memory,
        this_card,
    )

    this = (
        named_card(card)
        if card is not None
        else this_card(choose_device(settings.model.device))
    )
    model = meta_model(settings.model.path)
    if this is None:
        for known in CARDS:
            console.print(
                plan_memory(settings, model, known).verdict(),
                highlight=False,
                soft_wrap=True,
            )
        return
    engine_card = None if card is not None else first_card()
    plan = plan_memory(settings, model, this, engine_card)
    console.print(plan.table(), highlight=False, soft_wrap=True, markup=False)
    if not plan.fits:
        sys.exit(1)


def _run(
    settings: Config,
    folder: Path,
    console: Console,
    *,
    steps: Path | None,
    advantages: Path | None,
    resume: bool,
) -> None:
    from hgpo_envs.errors import InputError
    from hgpo_train.models.checkpoint_files import list_checkpoints
    from hgpo_train.training.config import code_named, configured_estimator
    from hgpo_train.training.display import Display
    from hgpo_train.training.evaluations import (
        evaluation_command,
        evaluation_episodes,
        evaluation_result,
    )
    from hgpo_train.training.run_folder import describe_interrupted
    from hgpo_train.training.saved_tables import train_on_table
    from hgpo_train.training.trainer import Trainer

    if (steps is None) != (advantages is None):
        raise InputError(
            "--steps: expected it together with --advantages, the table that `hgpo advantages` wrote"
        )

    def advice() -> str:
        words: list[object] = ["train", "--resume"]
        if steps is not None:
            words += ["--steps", steps, "--advantages", advantages]
        for name in code_named(settings).values():
            words += ["--allow", name] if name else []
        command = shlex.join(map(str, [*words, "--out", folder]))
        return (
            f"{describe_interrupted(folder)} Resume with: {common.program()} {command}"
        )

    display = Display(console, settings.iterations if steps is None else 0)
    with common.resumable(advice):
        if steps is not None and advantages is not None:
            with display.live:
                train_on_table(
                    settings, steps, advantages, folder, display, resume=resume
                )
        else:
            if settings.environment.prompt_style == "memory":
                common.note_memory(
                    settings.environment.history_length,
                    [configured_estimator(settings)],
                )
            with display.live:
                state = Trainer(settings, folder, display, resume=resume).run()
            if (
                state.best
                and (best := folder / "checkpoints" / f"{state.best:06d}").exists()
            ):
                episodes = evaluation_episodes(folder)
                result = evaluation_result(settings, episodes, state.best)
                console.print(f"{result} It is [bold]{best}[/].", soft_wrap=True)
            metrics = folder / "metrics.jsonl"
            table = folder / "steps"
            console.print(
                f"Metrics are in [bold]{metrics}[/], the steps in [bold]{table}[/].",
                soft_wrap=True,
            )
    policy = list_checkpoints(folder / "checkpoints")[-1]
    following: Sequence[object] = ("stats", folder)
    if steps is not None:
        following = (
            *evaluation_command(settings, f"transformers:{folder}"),
            "--out",
            f"{folder}-eval",
        )
    console.print(
        f"The policy is in [bold]{policy}[/]. {common.next_commands(following)}",
        soft_wrap=True,
    )
