"""The arena's folder: frozen worlds, and one file of results for each world and estimator.

    ARENA/worlds/WORLD/separate, shared     graphs of the tasks, as far as the reference visits them
    ARENA/worlds/WORLD/stage-K.parquet      step tables of policies at three stages, with the true advantages
    ARENA/results/WORLD/ESTIMATOR.parquet   rows of `measuring.RESULT`
    ARENA/costs/WORLD/ESTIMATOR.parquet     the time that an estimator takes, which is not the same twice

A file that exists and has the same settings is kept, so an interrupted arena is continued. The code of an estimator
that is not this project's is one of the settings. Every cell starts from the stored graphs, so that its bytes do not
depend on which cells were measured before.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.files.atomic import make_folder, new_path
from hgpo_research.arena import measuring
from hgpo_research.arena.ranking import ORACLE, REFERENCE
from hgpo_research.arena.worlds import WORLDS
from hgpo_research.tabular.learning import AGAIN, learn
from hgpo_research.truth.task import without_collector
from hgpo_train.advantages.variants import read_variants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hgpo_research.arena.worlds import World

ESTIMATORS: Final = (
    REFERENCE,
    REFERENCE + AGAIN,
    ORACLE,
    "discounted_grpo",
    "discounted_grpo:per_visit=true",
    "hgpo:history_length=1",
    "hgpo",
    "hgpo:history_length=4",
    "gigpo",
    "g2po",
    "graphgpo",
    "graphgpo:potential=rewardflow",
    "rloo",
    "reinforce_pp",
    "ecpo",
    "gagpo",
    "gagpo:gae_lambda=0.5",
    "bepo",
    "turn",
    "empg",
    "progress",
    "shrinkage_gae",
    "adaptive",
)
"""What is compared by default. `hcapo` reads a score that only a language model has."""

SEEDS: Final = 24
"""The number of seeds that learn."""

_METADATA: Final = "hgpo.arena"


def worlds_of(names: Sequence[str] | None) -> dict[str, World]:
    """Return worlds by name; by default all that are installed.

    Raises:
        InputError: A world is unknown, or its environment is not installed.
    """
    for name in names or ():
        if name not in WORLDS:
            raise InputError(unknown("world", name, list(WORLDS)))
    chosen = {name: WORLDS[name] for name in names or WORLDS}
    missing = {
        name: world.install
        for name, world in chosen.items()
        if world.install and not _is_installed(world)
    }
    if names and missing:
        name, install = next(iter(missing.items()))
        raise InputError(f"the world {name} needs {install}")
    return {name: world for name, world in chosen.items() if name not in missing}


def _is_installed(world: World) -> bool:
    return find_spec(world.install.partition(" ")[0].replace("-", "_")) is not None


def prepare(world: World, folder: Path) -> None:
    """Freeze a world: its graphs and the step tables of its stages, from nothing but its settings."""
    settings = _settings(world)
    if (
        _stored_settings(folder / f"stage-{len(measuring.STAGES) - 1}.parquet")
        == settings
    ):
        return
    for name, shared in (("separate", False), ("shared", True)):
        if shared and not world.shares:
            continue
        tasks, _ = world.compile(None, shared=shared)
        for _ in learn(
            tasks,
            measuring.method_of(REFERENCE, world)(),
            world.learning(SEEDS, "kl"),
            range(SEEDS),
        ):
            pass
        make_folder(folder / name)
        tasks.write(folder / name)
    tasks, _ = world.compile(folder / "separate", shared=False)
    for number, table in measuring.stage_tables(world, tasks).items():
        _write(table, folder / f"stage-{number}.parquet", settings)


def file_name(estimator: str) -> str:
    """Return the name of an estimator's files.

    >>> file_name("hgpo:history_length=4"), file_name("grpo:cross_steps=false (again)")
    ('hgpo-history_length=4.parquet', 'grpo-cross_steps=false-again.parquet')
    """
    return f"{re.sub(r'[^A-Za-z0-9_.=]+', '-', estimator).strip('-')}.parquet"


def measure(
    out: Path, name: str, world: World, estimator: str, *, seeds: int, overwrite: bool
) -> bool:
    """Measure an estimator in a world, unless its file has these settings. Return whether it was measured.

    Raises:
        InputError: The estimator is unknown or cannot be used in a world of tables.
    """
    target = out / "results" / name / file_name(estimator)
    settings = (
        _settings(world) | {"seeds": seeds, "estimator": estimator} | _code(estimator)
    )
    if not overwrite and _stored_settings(target) == settings:
        return False
    folder = out / "worlds" / name
    # Graphs grow all the time, and a search for garbage would go through them again and again.
    with without_collector():
        prepare(world, folder)
        found = measuring.measured(name, world, estimator, seeds, folder)
    make_folder(target.parent)
    _write(found, target, settings)
    if not estimator.endswith(AGAIN):
        time = measuring.cost(world, estimator, folder)
        row = {"world": [name], "estimator": [estimator], "ms_per_10k_steps": [time]}
        costs = out / "costs" / name / file_name(estimator)
        make_folder(costs.parent)
        _write(
            pl.DataFrame(row, schema_overrides={"ms_per_10k_steps": pl.Float64}),
            costs,
            settings,
        )
    return True


def read(out: Path, kind: str = "results") -> pl.DataFrame:
    """Return all `results` or `costs` of an arena.

    Raises:
        InputError: There are none.
    """
    files = sorted((out / kind).glob("*/*.parquet"))
    if not files:
        raise InputError(
            f"{out}: expected an arena with results, received none; measure them with hgpo arena --out"
        )
    return pl.concat(pl.read_parquet(file, glob=False) for file in files)


def arena(
    out: Path,
    estimators: Sequence[str] = ESTIMATORS,
    worlds: Sequence[str] | None = None,
    *,
    seeds: int = SEEDS,
    overwrite: bool = False,
    progress: Callable[[str, bool], object] = lambda _text, _done: None,
) -> pl.DataFrame:
    """Measure estimators in worlds, and return all results of the folder.

    Args:
        out: The arena's folder.
        estimators: As on the command line (``hgpo:history_length=4``, ``module:function``).
        worlds: Names of `WORLDS`; by default all that are installed.
        seeds: The number of seeds that learn, at least 2.
        overwrite: Whether to measure again what is there.
        progress: Called with a text before each cell (False) and after it (True).

    Raises:
        InputError: A name is unknown.
    """
    if seeds < 2:
        raise InputError(f"seeds: expected at least 2, received {seeds}")
    chosen = worlds_of(worlds)
    # Wrong names first: nothing runs for an hour before the last one is read.
    for estimator in estimators:
        for world in chosen.values():
            measuring.method_of(estimator.removesuffix(AGAIN), world)
    for name, world in chosen.items():
        for estimator in estimators:
            # Without exact values, the truth of every step of learning takes hours.
            if estimator == ORACLE and world.options.get("max_steps", 0) > 20:
                continue
            progress(f"{name} {estimator}", False)
            measure(out, name, world, estimator, seeds=seeds, overwrite=overwrite)
            progress(f"{name} {estimator}", True)
    return read(out)


def _settings(world: World) -> dict[str, Any]:
    numbers = [
        measuring.POLICIES,
        measuring.COPIES,
        measuring.SAMPLES,
        *measuring.STAGES,
    ]
    settings: dict[str, Any] = orjson.loads(
        orjson.dumps({"world": world, "measured": numbers})
    )
    return settings


def _code(estimator: str) -> dict[str, str]:
    """Return the hash of the module of an estimator that is not this project's, which its owner may change any time."""
    name = estimator.removesuffix(AGAIN)
    if measuring.is_mixture(name):
        return {}
    (variant,) = read_variants([name])
    module = inspect.getmodule(variant.estimator.function)
    if module is None or module.__name__.startswith("hgpo_"):
        return {}
    return {"code": hashlib.sha256(inspect.getsource(module).encode()).hexdigest()}


def _write(table: pl.DataFrame, file: Path, settings: dict[str, Any]) -> None:
    with new_path(file) as content:
        text = orjson.dumps(settings, option=orjson.OPT_SORT_KEYS).decode()
        table.write_parquet(content, metadata={_METADATA: text})


def _stored_settings(file: Path) -> dict[str, Any] | None:
    """Return the settings of a file; None if it does not exist."""
    if not file.exists():
        return None
    settings: dict[str, Any] | None = orjson.loads(
        pl.read_parquet_metadata(file).get(_METADATA, "null")
    )
    return settings
