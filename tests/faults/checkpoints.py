"""Scenarios that write checkpoints and the files of a training run."""

import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.faults.harness import Note, Scenario

SAVED = 3
KEPT = 2


@cache
def parts() -> tuple[Any, Any, Any]:
    """Return a minimal model, its tokenizer and its optimiser."""
    import torch

    from hgpo_train.models.tiny import TinyShape, make_model, train_tokenizer
    from hgpo_train.training.config import OptimiserConfig
    from hgpo_train.training.update.optimiser import make_optimiser

    torch.set_num_threads(1)
    tokenizer = train_tokenizer(["go to the red door", "open the door"], 300)
    shape = TinyShape(
        vocabulary=300,
        width=32,
        layers=1,
        heads=1,
        key_value_heads=1,
        intermediate=32,
        positions=64,
    )
    model = make_model(tokenizer, shape)
    optimiser = make_optimiser(model, OptimiserConfig())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    return model, tokenizer, optimiser


def warm() -> None:
    parts()
    import hgpo_train.training.checkpoint
    import hgpo_train.training.trainer  # noqa: F401


def weigh(model: Any, iteration: int) -> None:
    """Set every weight to a value that is unique to the iteration."""
    import torch

    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.fill_(iteration + number / 100)


def save(folder: Path, iteration: int) -> None:
    from hgpo_train.models.checkpoint_files import TrainingState
    from hgpo_train.training.checkpoint import save_checkpoint
    from hgpo_train.training.config import CheckpointConfig

    model, tokenizer, optimiser = parts()
    weigh(model, iteration)
    state = TrainingState(iteration=iteration)
    save_checkpoint(
        folder, state, model, tokenizer, optimiser, CheckpointConfig(keep=KEPT)
    )


def newest(folder: Path) -> int:
    """Return the iteration of the checkpoint that a run resumes from, or 0 without one; check its weights."""
    from hgpo_train.models.checkpoint_files import list_checkpoints
    from hgpo_train.training.checkpoint import load_checkpoint

    model, _, optimiser = parts()
    found = 0
    for path in list_checkpoints(folder):
        weigh(model, 99)
        found = load_checkpoint(path, model, optimiser).iteration
        loaded = [parameter.detach().clone() for parameter in model.parameters()]
        weigh(model, found)
        assert all(
            bool((a == b).all())
            for a, b in zip(loaded, model.parameters(), strict=True)
        ), "other weights"
        assert path.name == f"{found:06d}"
    return found


def save_several(root: Path, note: Note) -> None:
    """Save the missing iterations as training does, and the last one again, as a resumed run does."""
    for iteration in (
        *range(min(newest(root / "checkpoints") + 1, SAVED), SAVED + 1),
        SAVED,
    ):
        save(root / "checkpoints", iteration)
        note(str(iteration))


def check_saved(root: Path, noted: Sequence[str], whole: bool) -> None:
    from hgpo_train.models.checkpoint_files import resolve_model

    found = newest(root / "checkpoints")
    assert found >= (SAVED if whole else max(map(int, noted), default=0)), (
        f"lost: the newest is {found}"
    )
    if found:
        assert resolve_model(str(root)).endswith(f"{found:06d}")


@cache
def house() -> Path:
    """Return a folder with a small model for the house of doors and a prompt template; created once per process."""
    import tempfile

    from hgpo_train.models.tiny import TinyShape, save_tiny

    folder = Path(tempfile.mkdtemp(prefix="hgpo-house-"))
    shape = TinyShape(
        vocabulary=384, width=32, layers=1, heads=1, key_value_heads=1, intermediate=32
    )
    save_tiny(
        folder / "tiny", ["go to the red door", "open the door"] * 20, shape, seed=1
    )
    (folder / "short.j2").write_text(
        "{{ task }}\n{{ observation }}\n{{ admissible_actions | join(', ') }}"
    )
    return folder


def warm_house() -> None:
    warm()
    house()


def configuration() -> Any:
    from hgpo_train.training.config import Config, replace

    environment = {
        "id": "doors_env:HGPO-Test/Doors-v0",
        "action_format": "command",
        "max_steps": 3,
    }
    model = {"path": str(house() / "tiny"), "compute_dtype": "float32", "device": "cpu"}
    return replace(
        Config(),
        name="doors",
        iterations=2,
        environment=environment | {"prompt_template": str(house() / "short.j2")},
        model=model | {"gradient_checkpointing": False},
        rollout={
            "tasks": 2,
            "group_size": 2,
            "max_prompt_tokens": 200,
            "max_response_tokens": 3,
        },
        update={"mini_batch_size": 20, "logit_chunk": 0},
        optimiser={"learning_rate": 1e-3},
        evaluation={"every": 1, "split": "test", "tasks": 2},
        checkpoint={"every": 1, "keep": 1},
        tracking={"tensorboard": False},
    )


def train(root: Path, note: Note) -> None:
    """Complete a training run: configuration, tables, metrics, checkpoints."""
    from rich.console import Console

    from hgpo_train.training.display import Display
    from hgpo_train.training.trainer import Trainer

    config = configuration()
    Trainer(
        config,
        root / "run",
        Display(Console(file=io.StringIO()), config.iterations),
        resume=True,
    ).run()
    note("trained")


def check_trained(root: Path, noted: Sequence[str], whole: bool) -> None:
    from dataclasses import asdict

    from hgpo_datasets import manifest, verify
    from hgpo_train.models.checkpoint_files import list_checkpoints
    from hgpo_train.training.config import stored_config
    from hgpo_train.training.tracking import read_metrics

    run = root / "run"
    whole = whole or bool(noted)
    if whole or (run / "config.toml").exists():
        assert asdict(stored_config(run / "config.toml")) == asdict(configuration())
    if whole or (run / "manifest.jsonl").exists():  # written after the configuration
        assert manifest.read(run).header.config["model"]
    lines = read_metrics(run / "metrics.jsonl")
    numbers = [line["iteration"] for line in lines]
    assert numbers == sorted(set(numbers)), "a line of metrics twice"
    assert not whole or numbers == [0, 1, 2], f"metrics of iterations {numbers}"
    saved = (
        list_checkpoints(run / "checkpoints") if (run / "checkpoints").exists() else []
    )
    if saved:
        done = json.loads((saved[-1] / "trainer" / "state.json").read_text())[
            "iteration"
        ]
        assert set(range(1, done + 1)) <= set(numbers), "a line of metrics is lost"
    assert bool(saved) or not whole
    if whole:
        for table in (run, run / "steps", run / "evaluation"):
            report = verify(table)
            assert report.ok, report.problems


TASKS = 2


def scored_run(root: Path) -> None:
    """A run of two iterations with token ids, the first of which has the scores of another temperature."""
    write_tokens(root, TASKS)
    score(root, lambda _: None, temperature=2.0)


def write_tokens(root: Path, count: int) -> None:
    from groups import group

    from hgpo_datasets import StepWriter

    with StepWriter(root / "run", run="r", config={"x": 1}) as writer:
        for number in range(count):
            tokens = {
                "prompt_token_ids": [3, 4, 5 + number],
                "response_token_ids": [6, 7],
                "iteration": number,
            }
            writer.add_group([row | tokens for row in group(f"task {number}", 2, 2)])
            writer.commit()


def score(root: Path, note: Note, temperature: float = 1.0) -> None:
    """Replace the scores of both iterations, as `hgpo score --overwrite`."""
    from hgpo_train.training.scoring import score_run

    names = ["logprobs", "entropy"]
    score_run(
        root / "run", names, configuration(), temperature=temperature, overwrite=True
    )
    note("scored")


def check_scores(root: Path, noted: Sequence[str], whole: bool) -> None:
    """Every file has the old or the new scores, and a checksum that `verify` accepts."""
    from hgpo_datasets import VerifyReport
    from hgpo_datasets.row_tables import (
        files_of,
        read_metadata,
        read_table,
        verify_tables,
    )
    from hgpo_train.scores.tables import METADATA

    report = VerifyReport(str(root))
    verify_tables(root / "run", "scores", report)
    assert report.ok, report.problems
    files = files_of(root / "run", "scores")
    assert len(files) == TASKS
    for path in files:
        table = read_table(path)
        assert table["entropy"].null_count() == 0
        temperature = read_metadata(path, METADATA)["entropy"]["temperature"]
        assert temperature == 1 if whole or noted else temperature in (1, 2)
        assert table["entropy"].is_between(0, 6).all()


CHECKPOINTS_FOREIGN = (
    "checkpoints/000002.part/mine",
    "checkpoints/mine.part",
    "checkpoints/notes.txt",
)
# one that was not shortened after its file was replaced still names the old file, too
CHECKSUMS = ("*.sha256",)
SCORES_FOREIGN = (
    "run/scores/000001.parquet.part",
    "run/scores/mine/notes.txt",
    "run/scores.new",
)
RUN_FOREIGN = ("run.part/mine", "run/metrics.jsonl.part", "run/notes.txt")
VARIES = ("*/metrics.jsonl", "*/steps-*.parquet", "*/manifest.jsonl")

SCENARIOS = (
    Scenario(
        "checkpoints", save_several, check_saved, warm=warm, foreign=CHECKPOINTS_FOREIGN
    ),
    Scenario(
        "scores",
        score,
        check_scores,
        warm=warm_house,
        prepare=scored_run,
        foreign=SCORES_FOREIGN,
        varies=CHECKSUMS,
    ),
    Scenario(
        "training",
        train,
        check_trained,
        warm=warm_house,
        foreign=RUN_FOREIGN,
        varies=VARIES,
    ),
)
