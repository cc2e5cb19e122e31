"""The application: the project's commands, and those of other distributions.

A command is a function: its options are its parameters, and their meanings are those of its docstring. Options of
several commands are in `hgpo_train.cli.options`. Commands of other distributions are found by the entry point group
`hgpo.commands`: the name of an entry point is the command's words joined by dots, such as ``serve`` or
``data.synth.appworld``, and its object is a function. It is imported when the command is called, so that help stays
instant.
"""

from __future__ import annotations

import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, entry_points, version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cyclopts import App, CoercionError, Parameter, Token, convert

from hgpo_train.cli import card, certificate, check, data, panels
from hgpo_train.cli.advantages import advantages
from hgpo_train.cli.branch import branch
from hgpo_train.cli.common import check_output_path
from hgpo_train.cli.data_compare import compare
from hgpo_train.cli.envs import envs
from hgpo_train.cli.eval import evaluate
from hgpo_train.cli.help_page import HelpPage
from hgpo_train.cli.new import new
from hgpo_train.cli.play import play
from hgpo_train.cli.protocols import protocols
from hgpo_train.cli.quickstart import quickstart
from hgpo_train.cli.redaction import RedactedStream
from hgpo_train.cli.rollout import rollout
from hgpo_train.cli.score import score
from hgpo_train.cli.sft import sft
from hgpo_train.cli.stats import stats
from hgpo_train.cli.train import train
from hgpo_train.cli.verify import verify
from hgpo_train.cli.view import view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


LIBRARIES: Final = (
    "gymnasium", "numpy", "polars", "pyarrow", "torch", "transformers", "tokenizers", "peft", "vllm", "aiohttp"
)  # fmt: skip
"""The libraries that results depend on, whose versions `hgpo --version` prints."""

GROUPS: Final = {
    "card": "Write the card of a run, or check one.",
    "check": "Check an environment, or a GPU, before a run depends on it.",
    "data": "Download, build, generate, convert and show data.",
    "data build": "Build packs and catalogues from official files.",
    "data install": "Install a benchmark's original program.",
    "data fetch": "Download the official data.",
    "data synth": "Generate synthetic data.",
    "data export": "Export data to formats of other programs.",
    "data show": "Show a run, or with webshop a WebShop catalogue.",
    "panels": "List the panels of hgpo eval, and show what one fixes.",
    "certificate": "Check the certificate of an evaluation on a panel.",
}
"""Groups of commands by the words that call them, with their help."""

COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "advantages": advantages,
    "branch": branch,
    "envs": envs,
    "new": new,
    "play": play,
    "protocols": protocols,
    "quickstart": quickstart,
    "rollout": rollout,
    "score": score,
    "sft": sft,
    "stats": stats,
    "train": train,
    "verify": verify,
    "view": view,
    "eval": evaluate,
    "card": card.card,
    "card check": card.check_card,
    "check env": check.check_env,
    "check gpu": check.check_gpu,
    "data build alfworld": data.build_alfworld,
    "data build webshop": data.build_webshop,
    "data fetch alfworld": data.fetch_alfworld,
    "data fetch webshop": data.fetch_webshop,
    "data synth alfworld": data.synth_alfworld,
    "data synth webshop": data.synth_webshop,
    "data export minari": data.export_minari,
    "data export delta": data.export_delta,
    "data export openai": data.export_openai,
    "data import": data.import_rollouts,
    "data show": data.show_run,
    "data show webshop": data.show_webshop,
    "data compare": compare,
    "panels": panels.list_all,
    "panels show": panels.show,
    "certificate check": certificate.check,
}
"""The project's commands by the words that call them. One with the words of a group is what the group does alone."""

ENTRY_POINTS: Final = "hgpo.commands"

KNOWN: Final = {
    "advise": (
        "research",
        "Rank estimators on a saved run by what one update of each is worth.",
    ),
    "arena": (
        "research",
        "Compare estimators by what policies learn from them, in worlds with known truth.",
    ),
    "compare-estimators": (
        "research",
        "Compare estimators on a saved run, by gain or with true advantages.",
    ),
    "conform": (
        "integrations/record",
        "Check anybody's advantage code on tables with known right values.",
    ),
    "data.fetch.appworld": ("integrations/appworld", "Download AppWorld's tasks."),
    "data.install.appworld": (
        "integrations/appworld",
        "Install AppWorld in an environment of its own.",
    ),
    "data.synth.appworld": ("integrations/appworld", "Generate tasks for AppWorld."),
    "learn-tabular": (
        "research",
        "Train tabular policies with several estimators, and compare their curves.",
    ),
    "record": (
        "integrations/record",
        "Record the calls of a program to an OpenAI-compatible server.",
    ),
    "record.reward": (
        "integrations/record",
        "Reward the rollouts of a recorded run by a function.",
    ),
    "serve": (
        "integrations/openenv",
        "Serve environments to trainers in other processes.",
    ),
    "truth": ("research", "Compute the true advantages of the steps of a run."),
}
"""Commands of the project's own distributions: the folder in a checkout, and what they do, for help."""


def application() -> App:
    """Return the application with the project's commands."""
    app = App(
        name="hgpo",
        help="Roll out LLM agents on ALFWorld and WebShop, keep every step, and compute group advantages from any "
        "saved run.",
        version=versions,
        version_flags="--version",
        help_formatter=HelpPage(),
        help_format="plaintext",
        group_parameters="Options",
        default_parameter=Parameter(
            negative=(),
            negative_iterable=(),
            allow_repeating=True,
            converter=_convert_without_rounding,
        ),
    )
    groups = {"": app}
    for words, about in GROUPS.items():
        above, _, name = words.rpartition(" ")
        groups[words] = App(name=name, help=about)
        groups[above].command(groups[words])
    for words, command in COMMANDS.items():
        if words in groups:
            groups[words].default(command)
            continue
        above, _, name = words.rpartition(" ")
        groups[above].command(command, name=name, help_formatter=HelpPage(command))
    app.register_install_completion_command(
        help="Install completion for this shell: bash, zsh, fish or PowerShell."
    )
    return app


def _convert_without_rounding(kind: Any, tokens: Sequence[Token]) -> Any:  # noqa: ANN401 - cyclopts' protocol
    """Convert the words of an option as cyclopts does, which would read 1.5 as the integer 2."""
    converted = convert(kind, tokens)
    values = converted if isinstance(converted, list) else [converted]
    for value, token in zip(values, tokens, strict=False):
        if type(value) is int and "." in token.value:
            raise CoercionError(token=token, target_type=int)
    return converted


def add_plugins(app: App, words: Sequence[str]) -> None:
    """Add the commands of other distributions. Only the one that `words` call, if any, is imported."""
    for name in sorted({*KNOWN, *entry_points(group=ENTRY_POINTS).names}):
        *groups, last = name.split(".")
        parent = app
        for group in groups:
            if group not in parent:
                parent.command(App(name=group))
            parent = parent[group]
        if last in parent:  # the project's own command of this name
            continue
        is_called = list(words[: len(groups) + 1]) == [*groups, last]
        function = load_plugin(name) if is_called else _not_called
        about = (
            None
            if is_called
            else KNOWN.get(name, ("", "A command of another distribution."))[1]
        )
        parent.command(
            function, name=last, help=about, help_formatter=HelpPage(function)
        )


def _not_called() -> None:
    """Stand in help for a command that is not imported."""


def load_plugin(name: str) -> Callable[..., Any]:
    """Import the function of a command of another distribution.

    Raises:
        InputError: The distribution is not installed, or its function cannot be imported.
    """
    from hgpo_envs.errors import InputError
    from hgpo_envs.plugins import install_command, installed, load

    point = installed(ENTRY_POINTS).get(name)
    if point is None:
        folder, _ = KNOWN[name]
        distribution = f"hgpo-{folder.rpartition('/')[2]}"
        raise InputError(
            f"hgpo {name.replace('.', ' ')} needs {distribution}: {install_command(folder=folder)}"
        )
    function: Any = load(point)
    return function  # type: ignore[no-any-return]  # the entry point's contract


def versions() -> str:
    """Return the versions of the distributions, without importing them."""
    lines = [f"hgpo {version('hgpo')}"]
    lines.append(
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    for name in LIBRARIES:
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lines.append(f"{name} (not installed)")
    return "\n".join(lines)


def run(words: Sequence[str]) -> None:
    """Run a command line. Its output has secrets removed, its warnings are one line each.

    Raises:
        InputError: The path of an output cannot be written, or a word is empty: often a shell variable that is not
            set.
        cyclopts.CycloptsError: The command line is wrong.
    """
    # 1. Empty texts are refused: a path that is empty would be the working directory.
    for before, word in pairwise(("", *words)):
        name, equals, value = word.partition("=")
        if word and not (equals and not value and name.startswith("-")):
            continue
        # here, so that help imports nothing of it
        from hgpo_envs.errors import InputError

        option = name or (before if before.startswith("-") else "arguments")
        raise InputError(
            f"{option}: expected a value, received an empty text; use . for the working directory"
        )
    # 2. The command, of this distribution or of another one.
    app = application()
    # finding the others takes 60 ms
    if not words or words[0] not in COMMANDS.keys() - GROUPS.keys():
        add_plugins(app, words)
    command, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    # help and versions, without the imports of redaction
    if isinstance(getattr(command, "__self__", None), App):
        command(*bound.args, **bound.kwargs)
        return
    # 3. All output of a command is cleaned, with that of logging.
    from hgpo_envs.files.secrets import redact_logging

    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), RedactedStream):
            setattr(sys, name, RedactedStream(stream))
    redact_logging()
    # 4. The paths that it will write; URLs are not checked.
    for name in ("out", "plot"):
        path = bound.arguments.get(name)
        if path is not None and "://" not in str(path):
            check_output_path(Path(path), f"--{name}")
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(
            f"warning: {message}", file=sys.stderr
        )
        command(*bound.args, **bound.kwargs)


def every_command(app: App) -> Iterator[tuple[tuple[str, ...], App]]:
    """Return the groups and commands below an application with the words that call them."""
    for name in app:
        if not name.startswith("-"):
            yield (name,), app[name]
            for words, inner in every_command(app[name]):
                yield (name, *words), inner
