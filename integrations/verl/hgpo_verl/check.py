"""`hgpo-verl CONFIG --check`: does the installed verl take the launch file, read its settings, and train a step?"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_envs.plugins import install_command
from hgpo_verl.readers import READERS, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OURS: Final = ("defaults", "hgpo", "data.hgpo")
"""Keys of a launch file that this package reads, or Hydra."""

STEP: Final = (
    "data.train_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=1",
    "trainer.total_training_steps=1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.save_freq=-1",
    "trainer.logger=[console]",
)
"""What makes a run one small step on one card."""


def settings_of(launch: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of verl's settings that a launch file has."""
    for key, value in launch.items():
        name = f"{prefix}{key}"
        if name in OURS:
            continue
        if isinstance(value, dict) and value:
            yield from settings_of(value, f"{name}.")
        else:
            yield name


def unread(launch: Mapping[str, Any], verl: Path) -> list[str]:
    """Return the settings of a launch file that nothing in a folder of verl's source reads."""
    missing = []
    for name in settings_of(launch):
        file, expression = READERS.get(name, ("", ""))
        if not file or expression not in (verl / file).read_text("utf-8"):
            missing.append(name)
    return missing


def installed_verl(option: str) -> Path:
    """Return the folder of verl's source.

    Args:
        option: The option that needs it, for the error.

    Raises:
        InputError: verl is not installed.
    """
    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        command = install_command("vllm", "integrations/verl")
        raise InputError(
            f"{option}: expected verl {VERSION} in this environment; {command}"
        )
    return Path(spec.submodule_search_locations[0])


def check(file: Path, launch: Mapping[str, Any]) -> bool:
    """Print a line for each check, and return whether all passed or were skipped.

    Raises:
        InputError: verl is not installed.
    """
    verl = installed_verl("--check")
    missing = unread(launch, verl)
    count = len(list(settings_of(launch)))
    passed = _report(
        "keys",
        not missing,
        f"verl reads all {count} settings",
        f"not read: {', '.join(missing)}",
    )
    main = [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        "--config-dir",
        str(file.parent),
        "--config-name",
        file.stem,
    ]
    plugin = {"VERL_USE_EXTERNAL_MODULES": "hgpo_verl.plugin", **os.environ}
    composed = subprocess.run(  # noqa: S603
        [*main, "--cfg", "job"], env=plugin, capture_output=True, text=True, check=False
    )
    passed &= _report(
        "compose",
        composed.returncode == 0,
        "verl's configuration takes them",
        composed.stderr[-2000:],
    )
    from torch.cuda import is_available

    if not is_available():
        sys.stdout.write("step     skip  needs a CUDA device\n")
        return passed
    from hgpo_train.models.tiny import TinyShape, save_tiny

    folder = file.parent / "check"
    longest = launch["actor_rollout_ref"]["rollout"]["max_model_len"]
    model = save_tiny(
        folder / "model",
        ["You are in a room."],
        TinyShape(vocabulary=300, layers=2, positions=longest),
    )
    paths = {
        "actor_rollout_ref.model.path": model,
        "trainer.default_local_dir": folder,
        "hgpo.folder": folder / "run",
    }
    step = [*STEP, *(f"{name}='{path}'" for name, path in paths.items())]
    trained = subprocess.run(  # noqa: S603
        [*main, *step], env=plugin, capture_output=True, text=True, check=False
    )
    return passed & _report(
        "step",
        trained.returncode == 0,
        "one of a small random model",
        trained.stderr[-2000:],
    )


def _report(title: str, passed: bool, fact: str, otherwise: str) -> bool:
    sys.stdout.write(
        f"{title:<8} {'pass' if passed else 'FAIL'}  {fact if passed else otherwise}\n"
    )
    return passed
