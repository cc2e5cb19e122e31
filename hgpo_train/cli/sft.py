"""`hgpo sft`: supervised training on the steps of a saved run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations

from hgpo_train.cli import common, options  # cyclopts reads the annotations


def sft(
    steps: Path,
    /,
    *,
    out: options.RunFolder,
    config: Path | None = None,
    model: str | None = None,
    overrides: options.Overrides = None,
    print_config: options.PrintConfig = False,
) -> None:
    """Fine-tune a model on the steps of a saved run, as a warm start before reinforcement learning.

    Args:
        steps: A step table: a run's folder or a Parquet file.
        out: The run's folder.
        config: A TOML file. Default: the default settings.
        model: A folder or Hugging Face name, for --set model.path=…
        overrides: Settings.
        print_config: Whether to print the settings instead.
    """
    from hgpo_train.cli.display import terminal
    from hgpo_train.settings import to_toml
    from hgpo_train.training.config import SftConfig, load_config
    from hgpo_train.training.display import Display
    from hgpo_train.training.sft import run_sft

    assignments = [] if model is None else [f"model.path={model}"]
    settings = load_config(config, [*assignments, *(overrides or ())], SftConfig)
    if print_config:
        print(to_toml(settings, docs=True), end="")
        return
    console = terminal()
    display = Display(console, settings.update.epochs)
    advice = f"The last saved epoch is in {out}; run the same command again to resume."
    with common.resumable(advice), display.live:
        checkpoint = run_sft(settings, steps, out, display)
    following = ("train", "CONFIG", "--set", f"model.path={out}")
    console.print(
        f"The policy is in [bold]{checkpoint}[/]. {common.next_commands(following)}",
        soft_wrap=True,
    )
