"""`hgpo-verl`: write the launch file of a configuration of `hgpo train`, and print or run the command of verl."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

import yaml
from cyclopts import App, Parameter

from hgpo_envs.errors import InputError
from hgpo_train.cli import options  # noqa: TC001 - cyclopts reads the annotations
from hgpo_train.cli.help_page import HelpPage
from hgpo_train.training.config import Config, load_config
from hgpo_verl.check import check as check_launch
from hgpo_verl.check import installed_verl
from hgpo_verl.readers import VERSION
from hgpo_verl.translate import RULES, Cluster, translate

PLUGIN: Final = "hgpo_verl.plugin"


def launch_text(source: str, config: Config, cluster: Cluster, folder: Path) -> str:
    """Return a launch file of verl (YAML) for a configuration.

    Args:
        source: The name of the configuration, for the first line.
        config: The configuration.
        cluster: The machines.
        folder: The run's folder.

    Raises:
        InputError: A setting cannot be translated.
    """
    parts = "Under hgpo: the whole configuration, which its parts read."
    head = f"# {source} for verl {VERSION}, written by hgpo-verl. {parts}\n"
    text: str = yaml.safe_dump(
        translate(config, cluster, folder), sort_keys=False, width=120
    )
    return head + text


def command_line(file: Path) -> str:
    """Return the command that starts verl with a launch file."""
    where = shlex.quote(file.parent.absolute().as_posix())
    return (
        f"VERL_USE_EXTERNAL_MODULES={PLUGIN} python -m verl.trainer.main_ppo --config-dir {where} "
        f"--config-name {shlex.quote(file.stem)}"
    )


def launch(
    config: str | None = None,
    /,
    *,
    overrides: options.Overrides = None,
    gpus: int = 4,
    nodes: int = 1,
    out: Path | None = None,
    run: bool = False,
    check: bool = False,
    rules: bool = False,
) -> None:
    """Write RUN/verl.yaml from a configuration of `hgpo train`, and print the command that starts verl with it.

    Args:
        config: A TOML file, or the name of a shipped configuration.
        overrides: Settings.
        gpus: GPUs of each machine.
        nodes: Machines of the Ray cluster.
        out: The run's folder. Default: runs/<configuration>.
        run: Start verl instead of printing the command.
        check: Check that verl reads every setting and trains a small step, and exit.
        rules: Print what happens to each setting, and exit.
    """
    if rules:
        for name, rule in RULES.items():
            print(f"{name}\t{rule.kind}\t{rule.how}")
        return
    if config is None:
        raise InputError(
            "expected a configuration: a TOML file or a shipped name, see `hgpo train --list`"
        )
    folder = (out or Path("runs") / Path(config).stem).absolute()
    text = launch_text(
        Path(config).stem,
        load_config(config, overrides or (), Config),
        Cluster(gpus, nodes),
        folder,
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "verl.yaml"
    file.write_text(text, encoding="utf-8")
    if check:
        sys.exit(0 if check_launch(file, yaml.safe_load(text)) else 1)
    if not run:
        print(command_line(file))
        return
    installed_verl("--run")
    os.environ["VERL_USE_EXTERNAL_MODULES"] = PLUGIN
    arguments = [
        "-m",
        "verl.trainer.main_ppo",
        "--config-dir",
        str(folder),
        "--config-name",
        file.stem,
    ]
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - no shell


def main() -> None:
    """Run the command line."""
    app = App(
        name="hgpo-verl",
        default_command=launch,
        help_formatter=HelpPage(),
        help_format="plaintext",
        default_parameter=Parameter(
            negative=(), negative_iterable=(), allow_repeating=True
        ),
    )
    try:
        app()
    except InputError as error:
        raise SystemExit(f"hgpo-verl: {error}") from None


if __name__ == "__main__":
    main()
