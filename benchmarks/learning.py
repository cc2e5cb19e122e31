"""Learning curves: success on held-out tasks over environment steps, one run per estimator and seed.

    python benchmarks/learning.py --world alfworld                      GRPO, GiGPO, HGPO (K = 2), G2PO; 3 seeds each
    python benchmarks/learning.py --world webshop                       GRPO, HGPO; 3 seeds each
    python benchmarks/learning.py --world alfworld --estimators hgpo --seeds 0     one run
    python benchmarks/learning.py --world alfworld --draw               table and picture of existing results
    python benchmarks/learning.py --world alfworld --name parts --set environment_steps=30000 --estimators \
        grpo,grpo:invalid_action_penalty=0.1,gigpo,gigpo:episode_weight=0      parts of estimators, compared
    python benchmarks/learning.py --world alfworld --name chat --set environment.prompt_style=chat \
        --set rollout.max_prompt_tokens=2048 --estimators hgpo --against memory       conversations, against "memory"

A model of about a million parameters is warm-started once for all runs. Its demonstrations are actions of the explorer
mixed with others (`WORLDS`), in games or shops generated with other seeds than the bundled ones. Each run then trains
on the bundled training tasks and is evaluated on the bundled held-out tasks, also before training. Because these are
few, the policies before and after training also play fresh tasks, generated for this purpose, once per seed (`hgpo
eval`). The script can be interrupted (Ctrl-C) at any time; the same command resumes. All files of the runs are in
--folder. Results: benchmarks/results/learning_<world>.json, and the curves next to it. With --name, runs and results
are separate and share the warm start, but each prompt style has its own, from the same demonstrations.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from learning_figures import START, file_name, fresh_folder, report
from readme import OTHER_SEEDS
from record import add_keep
from rich.console import Console

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_train.advantages.variants import Variant, read_variants
from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.models.tiny import TinyShape
from hgpo_train.settings import to_toml
from hgpo_train.training.config import Config, load_config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.run_folder import CONFIG, fixed_settings
from hgpo_train.training.tracking import read_metrics
from hgpo_train.training.trainer import is_finished
from hgpo_train.training.warm_start import WarmStart, warm_start
from tools.webshop_catalogue import make_bundled_catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORLDS: Final[dict[str, dict[str, Any]]] = {  # estimators with the parameters of their papers' scripts
    "alfworld": {
        "estimators": {"grpo": {}, "gigpo": {}, "hgpo": {"history_length": 2}, "g2po": {"state_key": "alfworld-nodes"}},
        "compared": "grpo,gigpo,hgpo,g2po",
        "seeds": (0, 1, 2),
        "warm_start": (
            WarmStart(
                policy="mixture:explorer=0.6,random=0.35,outdated=0.05",  # valid commands without a goal
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
        "seeds": (0, 1, 2),
        "warm_start": (
            WarmStart(
                policy="mixture:explorer=0.92,random=0.04,outdated=0.04",
                demonstrations=12_800,
                epochs=2,
                learning_rate=4e-3,
                shape=TinyShape(initial=0.07),
            ),
            WarmStart(  # then all steps, failures included, of a player with a third of random actions
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


def main() -> None:
    """Run the missing parts and draw the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", choices=list(WORLDS), default="alfworld")
    parser.add_argument(
        "--estimators", type=variants, help="comma-separated, NAME:PARAMETER=VALUE; default: the world's"
    )
    parser.add_argument("--seeds", type=integers, help="comma-separated; all of the world's without")
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.field=value")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; each has its share of the cores")
    parser.add_argument("--draw", action="store_true", help="run nothing")
    parser.add_argument("--demonstrations", type=float, default=1.0, help="share of the world's demonstrations")
    parser.add_argument("--name", help="name of these runs and of the result")
    parser.add_argument("--against", help="name of earlier runs, with which success on fresh tasks is compared too")
    add_keep(parser)
    given = parser.parse_args()
    handle = WORLDS[given.world]
    estimators = given.estimators or variants(handle["compared"])
    seeds = given.seeds or handle["seeds"]
    folder, console = given.folder / given.world, Console()
    place = folder / given.name if given.name else folder
    base = load_config(f"tiny-{given.world}", given.overrides)
    if not given.draw:
        place.mkdir(parents=True, exist_ok=True)
        warm = taught(given.world, folder, base, given.demonstrations, console)
        work = Work(console, given.jobs)
        runs = planned(base, warm, estimators, seeds, handle["estimators"])
        trained = [partial(train, place / name, run, work) for name, run in runs.items()]
        data = FRESH[given.world](folder)
        if not work.all_done(trained) or not work.all_done(fresh_evaluations(data, place, warm, runs, work)):
            sys.exit(1)
    report(given.world, place, console, given.name, folder / given.against if given.against else None, keep=given.keep)


class Work:
    """A runner of parallel commands. After a failure or Ctrl-C, which ends running commands, no further one is started.

    Args:
        console: Console for progress lines.
        jobs: Number of parallel commands; each gets an equal share of the cores.
    """

    def __init__(self, console: Console, jobs: int) -> None:
        self._console, self._jobs, self._failed = console, jobs, threading.Event()

    def all_done(self, tasks: list[Callable[[], bool]]) -> bool:
        """Return whether all tasks succeeded."""
        with ThreadPoolExecutor(self._jobs) as pool:
            return all(task.result() for task in [pool.submit(task) for task in tasks])

    def done(self, name: str, command: list[str], log: Path) -> bool:
        """Return whether a command of `hgpo` succeeded. With parallel commands, each prints to its own log."""
        if self._failed.is_set():
            return False
        self._console.print(f"{name} begins")
        began = time.perf_counter()
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self._jobs))}
        with ExitStack() as stack:
            output = stack.enter_context(log.open("a")) if self._jobs > 1 else None
            code = subprocess.call([*HGPO, *command], env=threads | os.environ, stdout=output, stderr=output)
        if code:
            self._failed.set()
            why = f": {log} says why" if self._jobs > 1 else ""
            self._console.print(f"{name} ended with {code}{why}", soft_wrap=True)
        else:
            self._console.print(f"{name}: {time.perf_counter() - began:,.0f} s")
        return not code


def variants(text: str) -> list[Variant]:
    """Parse estimators with parameters."""
    try:
        return read_variants([text])
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def integers(text: str) -> list[int]:
    """Parse seeds."""
    return [int(seed) for seed in text.split(",")]


def taught(handle: str, folder: Path, config: Config, share: float, console: Console) -> Path:
    """Train the initial model of all runs in stages; the last is in the folder, that of chat in its own."""
    stages, data = WORLDS[handle]["warm_start"], DEMONSTRATED[handle](folder)
    if config.environment.prompt_style == "chat":
        folder /= "chat-warm-start"
    model = None
    for number, stage in enumerate(stages, 1):
        place = folder if number == len(stages) else folder / f"warm-start-{number}"
        start = dataclasses.replace(stage, data=data, demonstrations=round(share * stage.demonstrations))
        model = warm_start(place, config, start, Display(console, start.epochs), model)
    return model


def planned(
    base: Config, warm: Path, estimators: list[Variant], seeds: Sequence[int], world: dict[str, dict[str, Any]]
) -> dict[str, Config]:
    """Return the configurations of all runs by name. The first estimator runs again with other seeds: the A/A test."""
    first = estimators[0]
    every = [(each, file_name(each.name), 0) for each in estimators]
    every.append((first, f"{file_name(first.name)}{OTHER_SEEDS}", OTHER))
    return {
        f"{name}-{seed}": configuration(base, warm, each, world.get(each.estimator.name, {}), seed + shift)
        for seed in seeds
        for each, name, shift in every
    }


def configuration(base: Config, warm: Path, variant: Variant, own: dict[str, Any], seed: int) -> Config:
    """Return a run's configuration: the world's parameters of the estimator, `own`, then those of the variant."""
    values, name = dataclasses.asdict(base), f"{variant.name}-{seed}"
    of_hgpo = ("history_length", "mode")
    common = {key: value for key, value in base.advantage.parameters.items() if key not in of_hgpo}
    values["advantage"] = {"estimator": variant.estimator.name, "parameters": common | own | variant.assigned}
    values["model"] = {key: value for key, value in values["model"].items() if key != "path"} | {"path": str(warm)}
    return replace(Config(), **{**values, "name": name, "seed": seed})


def games(path: Path, number: int, seed: int) -> str:
    """Return a pack of generated games, created if missing: two thirds to train, a sixth per held-out split."""
    if not path.exists():
        sizes = ("--games", str(number), "--seed", str(seed))
        subprocess.run([*HGPO, "data", "synth", "alfworld", *sizes, "--out", str(path)], check=True)
    return str(path)


def shop(path: Path, seed: int) -> str:
    """Return a catalogue like the bundled one with other products and instructions, created if missing."""
    if not path.exists():
        make_bundled_catalogue(path, seed=seed)
    return str(path)


DEMONSTRATED: Final[dict[str, Callable[[Path], tuple[str, ...]]]] = {
    "alfworld": lambda folder: (games(folder / "games.pack", 4_500, seed=7),),
    "webshop": lambda folder: tuple(shop(folder / "catalogues" / str(seed), seed) for seed in range(1, CATALOGUES + 1)),
}
"""Functions that create the data of a world's demonstrations in a folder."""
FRESH: Final[dict[str, Callable[[Path], str]]] = {
    "alfworld": lambda folder: games(folder / "fresh.pack", 864, seed=11),
    "webshop": lambda folder: shop(folder / "catalogues" / "fresh", seed=101),
}
"""Functions that create the data of a world's fresh tasks, in its held-out split."""


def train(folder: Path, config: Config, work: Work) -> bool:
    """Run or resume one training in its own process.

    Raises:
        InputError: A finished run has another configuration.
    """
    lines = read_metrics(folder / "metrics.jsonl")
    if lines and is_finished(config, lines[-1]["iteration"], lines[-1]["training/environment_steps"]):
        stored, asked = (fixed_settings(run) for run in (load_config(folder / CONFIG), config))
        if stored != asked:
            raise InputError(f"{folder} has another configuration; use another --folder or --name")
        return True
    source, log = (folder.with_name(f"{folder.name}.{kind}") for kind in ("toml", "log"))  # names contain points
    write_file(source, to_toml(config).encode())
    return work.done(folder.name, ["train", str(source), "--out", str(folder), "--resume"], log)


def fresh_evaluations(
    data: str, folder: Path, warm: Path, runs: dict[str, Config], work: Work
) -> list[Callable[[], bool]]:
    """Evaluate on fresh tasks: the initial policy with all seeds, each run with its own seed.

    `hgpo eval` plays only missing episodes, and rejects a folder with another evaluation.
    """
    everyone = sorted({run.seed for run in runs.values() if run.seed < OTHER})
    players = [(START, warm, next(iter(runs.values())), everyone)]
    players += [
        (name, list_checkpoints(folder / name / "checkpoints")[-1], run, [run.seed]) for name, run in runs.items()
    ]
    missing = []
    for name, model, config, seeds in players:
        out = fresh_folder(folder, name)
        command = evaluation(config, model, data, seeds, out)
        missing.append(partial(work.done, f"{name} on fresh tasks", command, folder / "fresh.log"))
    return missing


def evaluation(config: Config, model: Path, data: str, seeds: list[int], out: Path) -> list[str]:
    """Return the command that plays a split with other data, like a run's own evaluation."""
    own = {"data": data, "split": config.evaluation.split, "seeds": ",".join(map(str, seeds)), "out": out}
    own["temperature"] = config.evaluation.temperature
    return ["eval", *played(config, model), *(f"--{name}={value}" for name, value in own.items())]


def played(config: Config, model: Path) -> list[str]:
    """Return the options of `hgpo eval` and `hgpo rollout` that play a model as training does."""
    environment, rollout = config.environment, config.rollout
    options = dict(environment.options) | {"prompt_template": environment.prompt_template}
    options |= {"prompt_style": environment.prompt_style}
    policy = {"device": config.model.device, "compute_dtype": config.model.compute_dtype} | rollout.engine_options
    policy |= {"max_prompt_tokens": rollout.max_prompt_tokens, "max_response_tokens": rollout.max_response_tokens}
    arguments = {
        "env": environment.id,
        "history-length": environment.history_length,
        "max-steps": environment.max_steps,
        "action-format": environment.action_format,
        "policy": f"transformers:{model}",
    }
    return [
        *(f"--{name}={value}" for name, value in arguments.items()),
        *(f"--env-option={name}={value}" for name, value in options.items() if value is not None),
        *(f"--policy-option={name}={value}" for name, value in policy.items()),
    ]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: the same command resumes.")
    except InputError as error:
        sys.exit(f"error: {error}")
