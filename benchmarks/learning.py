"""Learning curves: success on held-out tasks over environment steps, one run per estimator and seed.

    python -m benchmarks learning --world alfworld                   GRPO, GiGPO, HGPO (K = 2), G2PO; 3 seeds each
    python -m benchmarks learning --world webshop                    GRPO, HGPO; 3 seeds each
    python -m benchmarks learning --world alfworld --estimators hgpo --seeds 0     one run
    python -m benchmarks learning --world alfworld --draw            table and picture of existing results
    python -m benchmarks learning --world alfworld --name parts --set environment_steps=30000 --estimators \
        grpo,grpo:invalid_action_penalty=0.1,gigpo,gigpo:episode_weight=0      parts of estimators, compared
    python -m benchmarks learning --world alfworld --name chat --set environment.prompt_style=chat \
        --set rollout.max_prompt_tokens=2048 --estimators hgpo --against memory       conversations, against "memory"

A model of about a million parameters is warm-started once for all runs. Its demonstrations are actions of the explorer
mixed with others (`WORLDS`), in games or shops generated with other seeds than the bundled ones. Each run then trains
on the bundled training tasks and is evaluated on the bundled held-out tasks, also before training. Because these are
few, the policies before and after training also play fresh tasks, generated for this purpose, once per seed (`hgpo
eval`). The command can be interrupted (Ctrl-C) at any time; the same command resumes. All files of the runs are in
--folder. The curves are drawn beside the result. With --name, runs and results are separate and share the warm start,
but each prompt style has its own, from the same demonstrations.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console

from benchmarks.learning_figures import START, file_name, fresh_folder, report
from benchmarks.readme import OTHER_SEEDS
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_train.advantages.variants import Variant, read_variants
from hgpo_train.models.checkpoint_files import TrainingState, list_checkpoints
from hgpo_train.models.tiny import TinyShape
from hgpo_train.settings import to_toml
from hgpo_train.training.config import Config, load_config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.progress import is_finished
from hgpo_train.training.run_folder import CONFIG, fixed_settings
from hgpo_train.training.tracking import read_metrics
from hgpo_train.training.warm_start import WarmStart, warm_start
from tools.webshop_catalogue import make_bundled_catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.runner import Part

# estimators with the parameters of their papers' scripts
WORLDS: Final[dict[str, dict[str, Any]]] = {
    "alfworld": {
        "estimators": {
            "grpo": {},
            "gigpo": {},
            "hgpo": {"history_length": 2},
            "g2po": {"state_key": "alfworld-nodes"},
        },
        "compared": "grpo,gigpo,hgpo,g2po",
        "warm_start": (
            WarmStart(
                # valid commands without a goal
                policy="mixture:explorer=0.6,random=0.35,outdated=0.05",
                demonstrations=3_000,
                epochs=2,
            ),
        ),
    },
    "webshop": {
        "estimators": {
            "grpo": {},
            "gigpo": {"mode": "mean_norm"},
            "hgpo": {"history_length": 2, "mode": "mean_norm"},
            "g2po": {"mode": "mean_norm", "step_weight": 0.8},
        },
        "compared": "grpo,hgpo",
        "warm_start": (
            WarmStart(
                policy="mixture:explorer=0.92,random=0.04,outdated=0.04",
                demonstrations=12_800,
                epochs=2,
                learning_rate=4e-3,
                shape=TinyShape(initial=0.07),
            ),
            # then all steps, failures included, of a player with a third of random actions
            WarmStart(
                policy="mixture:explorer=0.65,random=0.3,outdated=0.05",
                demonstrations=1_600,
                rows="all",
                epochs=1,
                learning_rate=1.5e-3,
            ),
        ),
    },
}
CATALOGUES: Final = 16
OTHER: Final = 1000
"""Added to the seeds of the runs that repeat the first estimator: the A/A test, which shows what chance alone gives."""
HGPO: Final = (sys.executable, "-c", "from hgpo_train.cli import main; main()")


def run(
    world: Literal["alfworld", "webshop"] = "alfworld",
    estimators: str = "",
    seeds: str = "0,1,2",
    folder: Path = Path("runs/learning"),
    set_: tuple[str, ...] = (),
    jobs: int = 1,
    draw: bool = False,
    demonstrations: float = 1.0,
    name: str = "",
    against: str = "",
) -> list[Part]:
    """Run what is missing, `jobs` at a time; `demonstrations` is the share of the world's that are imitated."""
    described = WORLDS[world]
    folder /= world
    place = folder / name
    if not draw:
        place.mkdir(parents=True, exist_ok=True)
        base = load_config(f"tiny-{world}", set_)
        demonstrated, fresh = data_of(world, folder)
        stages = [
            dataclasses.replace(
                stage,
                data=demonstrated,
                demonstrations=round(demonstrations * stage.demonstrations),
            )
            for stage in described["warm_start"]
        ]
        warm = warm_started(folder, base, stages)
        variants = read_variants([estimators or described["compared"]])
        runs = planned(
            base,
            warm,
            variants,
            [int(seed) for seed in seeds.split(",")],
            described["estimators"],
        )
        run_jobs(place, trainings(place, runs), jobs)
        run_jobs(place, fresh_evaluations(fresh, place, warm, runs), jobs)
    return report(world, place, name, folder / against if against else None)


def run_jobs(folder: Path, commands: dict[str, list[str]], jobs: int) -> None:
    """Run commands of `hgpo` by title, each with its share of the cores.

    Commands beside each other write their output into logs. After a failure, no further one starts, and the program
    ends.
    """
    failed = threading.Event()
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {"OMP_NUM_THREADS": threads} | os.environ

    def work(title: str) -> None:
        if failed.is_set():
            return
        print(f"{title} begins")
        began = time.perf_counter()
        log = folder / f"{title}.log"
        with log.open("a") if jobs > 1 else nullcontext() as output:
            code = subprocess.call(
                [*HGPO, *commands[title]],
                env=environment,
                stdout=output,
                stderr=output,
            )
        if code:
            failed.set()
            print(f"{title} ended with {code}", f"({log})" if output else "")
        else:
            print(f"{title}: {time.perf_counter() - began:,.0f} s")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, commands))
    if failed.is_set():
        sys.exit(1)


def warm_started(folder: Path, config: Config, stages: list[WarmStart]) -> Path:
    """Train the initial model of all runs in stages; the last is in the folder, that of chat in its own."""
    if config.environment.prompt_style == "chat":
        folder /= "chat-warm-start"
    model = None
    for number, stage in enumerate(stages, 1):
        place = folder if number == len(stages) else folder / f"warm-start-{number}"
        display = Display(Console(), stage.epochs)
        model = warm_start(place, config, stage, display, model)
    return model


def planned(
    base: Config,
    warm: Path,
    estimators: list[Variant],
    seeds: Sequence[int],
    world: dict[str, dict[str, Any]],
) -> dict[str, Config]:
    """Return the configurations of all runs by name. The first estimator runs again with other seeds: the A/A test."""
    first = estimators[0]
    every = [(each, file_name(each.name), 0) for each in estimators]
    every.append((first, f"{file_name(first.name)}{OTHER_SEEDS}", OTHER))
    runs = {}
    for seed in seeds:
        for each, name, shift in every:
            ours = world.get(each.estimator.name, {})
            config = configuration(base, warm, each, ours, seed + shift)
            runs[f"{name}-{seed}"] = config
    return runs


def configuration(
    base: Config, warm: Path, variant: Variant, ours: dict[str, Any], seed: int
) -> Config:
    """Return a run's configuration: the world's parameters of the estimator, `ours`, then those of the variant."""
    name = f"{variant.name}-{seed}"
    values = dataclasses.asdict(base)
    parameters = values["advantage"]["parameters"]
    # those of HGPO, whose configuration it is
    for hgpos in ("history_length", "mode"):
        parameters.pop(hgpos, None)
    values["advantage"] = {
        "estimator": variant.estimator.name,
        "parameters": parameters | ours | variant.assigned,
    }
    values["model"]["path"] = str(warm)
    return replace(Config(), **{**values, "name": name, "seed": seed})


def games(path: Path, number: int, seed: int) -> str:
    """Return a pack of generated games, created if missing: two thirds to train, a sixth per held-out split."""
    if not path.exists():
        sizes = ("--games", str(number), "--seed", str(seed))
        subprocess.run(
            [*HGPO, "data", "synth", "alfworld", *sizes, "--out", str(path)],
            check=True,
        )
    return str(path)


def shop(path: Path, seed: int) -> str:
    """Return a catalogue like the bundled one with other products and instructions, created if missing."""
    if not path.exists():
        make_bundled_catalogue(path, seed=seed)
    return str(path)


def data_of(world: str, folder: Path) -> tuple[tuple[str, ...], str]:
    """Return the data of a world's demonstrations and of its fresh tasks, which are in its held-out split."""
    if world == "alfworld":
        demonstrated = games(folder / "games.pack", 4_500, seed=7)
        return (demonstrated,), games(folder / "fresh.pack", 864, seed=11)
    catalogues = folder / "catalogues"
    seeds = range(1, CATALOGUES + 1)
    shops = tuple(shop(catalogues / str(seed), seed) for seed in seeds)
    return shops, shop(catalogues / "fresh", seed=101)


def trainings(folder: Path, runs: dict[str, Config]) -> dict[str, list[str]]:
    """Return the commands that run or resume the trainings that are not finished.

    Raises:
        InputError: A finished run has another configuration.
    """
    missing = {}
    for name, config in runs.items():
        run = folder / name
        lines = read_metrics(run / "metrics.jsonl")
        reached = TrainingState()
        if lines:
            steps = int(lines[-1]["training/environment_steps"])
            reached = TrainingState(lines[-1]["iteration"], environment_steps=steps)
        if is_finished(config, reached):
            stored = load_config(run / CONFIG)
            if fixed_settings(stored) != fixed_settings(config):
                raise InputError(
                    f"{run} has another configuration; use another --folder or --name"
                )
            continue
        source = folder / f"{name}.toml"
        write_file(source, to_toml(config).encode())
        missing[name] = ["train", str(source), "--out", str(run), "--resume"]
    return missing


def fresh_evaluations(
    data: str, folder: Path, warm: Path, runs: dict[str, Config]
) -> dict[str, list[str]]:
    """Evaluate on fresh tasks: the initial policy with all seeds, each run with its own seed.

    `hgpo eval` plays only missing episodes, and rejects a folder with another evaluation.
    """
    everyone = sorted({config.seed for config in runs.values() if config.seed < OTHER})
    players = [(START, warm, next(iter(runs.values())), everyone)]
    for name, config in runs.items():
        newest = list_checkpoints(folder / name / "checkpoints")[-1]
        players.append((name, newest, config, [config.seed]))
    return {
        f"{name} on fresh tasks": [
            *evaluation(config, model, seeds),
            f"--data={data}",
            f"--out={fresh_folder(folder, name)}",
        ]
        for name, model, config, seeds in players
    }


def evaluation(config: Config, model: Path, seeds: list[int]) -> list[str]:
    """Return the command that plays the split of a run's own evaluation with its options."""
    environment = config.environment
    rollout = config.rollout
    given = {
        "env": environment.id,
        "split": config.evaluation.split,
        "seeds": ",".join(map(str, seeds)),
        "temperature": config.evaluation.temperature,
        "history-length": environment.history_length,
        "max-steps": environment.max_steps,
        "action-format": environment.action_format,
        "env-option=prompt_template": environment.prompt_template,
        "env-option=prompt_style": environment.prompt_style,
        "policy": f"transformers:{model}",
        "policy-option=device": config.model.device,
        "policy-option=compute_dtype": config.model.compute_dtype,
        "policy-option=max_prompt_tokens": rollout.max_prompt_tokens,
        "policy-option=max_response_tokens": rollout.max_response_tokens,
    }
    for name, value in environment.options.items():
        given[f"env-option={name}"] = value
    for name, value in rollout.engine_options.items():
        given[f"policy-option={name}"] = value
    options = (
        f"--{name}={value}" for name, value in given.items() if value is not None
    )
    return ["eval", *options]
