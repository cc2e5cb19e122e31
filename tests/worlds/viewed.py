"""Runs to look at: a small one whose figures are known, a hostile one, and a training run."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import orjson

from hgpo_datasets import StepWriter

HOSTILE = {
    "script": "<script>window.hacked = true; document.title = 'hacked'</script>",
    "handler": "<img src=x onerror=\"window.hacked = true\"><svg onload='window.hacked = true'>",
    "end of data": "</script><script>window.hacked = true</script><!--",
    "link": '<a href="javascript:window.hacked=true">click</a>',
    "right to left": "safe \u202egnp.exe\u202c \u0645\u0631\u062d\u0628\u0627 \u2066\u2069",
    "control": "a\x00b\x1b[31mred\x07\r\n\tc",
    "surrogate": "lone \ud800 and \udfff",
    "markup": "[red]x[/red] [@click=app.quit]y[/] [/nothing",
    "separators": "one\u2028two\u2029three\ufeff",
    "large": "word " * 210_000,
}
"""Texts that a page must show and never run."""


def hostile_rows(task: str = "hostile") -> list[dict[str, object]]:
    """Return one trajectory per hostile text, which is in every column that holds texts."""
    rows: list[dict[str, object]] = []
    for number, text in enumerate(HOSTILE.values()):
        row = {
            "task_id": f"{task} <b onclick=alert(1)>bold</b>",
            "trajectory": f"{number} {text[:200]}",
        }
        row |= {
            "task": HOSTILE["script"],
            "task_type": HOSTILE["handler"],
            "prompt": text,
            "response": text,
        }
        row |= {
            "action": text[:5000],
            "admissible_actions": [text[:5000], HOSTILE["script"]],
        }
        row |= {
            "action_valid": number % 2 == 0,
            "response_token_ids": [1, 2],
            "response_logprobs": [-0.1, -5.0],
        }
        end = {
            "won": number % 2 == 1,
            "reward": float(number % 2),
            "terminated": True,
            "next_state": text,
        }
        rows.append(
            row | {"step": 0, "state": "the start", "reward": 0.0, "won": False}
        )
        rows.append(row | {"step": 1, "state": text, **end})
    return rows


def small_rows(task: str, iteration: int = 0) -> list[dict[str, object]]:
    """Return four trajectories of one task: two come to the key through the hall, one through the cellar, one is lost.

    The states are a, b, c; the returns 1, 0, 1 and (aborted) 0.
    """
    paths = {"w": "abc", "x": "abc", "y": "bbc", "z": "ab"}
    rows: list[dict[str, object]] = []
    for name, path in paths.items():
        for step, place in enumerate(path):
            last = step == len(path) - 1
            won = last and name in "wy"
            row = {
                "iteration": iteration,
                "task_id": task,
                "task_type": "find" if task < "m" else None,
                "step": step,
            }
            row |= {
                "task": f"find the key of {task}",
                "env_id": "HGPO-Test/Keys-v0",
                "reward": float(won),
                "won": won,
            }
            row |= {
                "trajectory": f"{task}/{iteration}/{name}",
                "state": f"room {place}",
                "action": f"go {step}",
            }
            row |= {
                "prompt": f"You are in room {place}.",
                "admissible_actions": [f"go {step}", "wait"],
            }
            row |= {"response": f"<think>so</think><action>go {step}</action>"}
            row |= {
                "action_valid": not (name == "x" and step == 1),
                "terminated": last,
                "next_state": None,
            }
            if last and name == "z":
                row |= {
                    "terminated": False,
                    "aborted": True,
                    "error": "the server hung up",
                }
            elif last:
                row["next_state"] = "the end"
            rows.append(
                row | {"aborted": row.get("aborted", False), "error": row.get("error")}
            )
    return rows


def data_of(page: Path) -> dict[str, Any]:
    """Return the documents in a page that is a file."""
    (data,) = re.findall(
        r'<script type="text/plain" id="data">([\w+/=]*)</script>', page.read_text()
    )
    return dict(json.loads(gzip.decompress(base64.b64decode(data))))


def write_training(folder: Path, iterations: int = 3) -> None:
    """Write what a training run leaves: steps of several iterations, and metrics of all but the last."""
    folder.mkdir()
    (folder / "config.toml").write_text('name = "test"\n')
    lines = [
        {"iteration": n, "loss/policy": 1.0 / n, "val/success_rate": None}
        for n in range(1, iterations)
    ]
    (folder / "metrics.jsonl").write_bytes(
        b"".join(orjson.dumps(line) + b"\n" for line in lines) + b'{"iteration": 3, "lo'
    )
    with StepWriter(folder) as writer:
        for number in range(iterations):
            writer.add_group(small_rows("alpha", number))
            writer.commit()


RESPONSES = (
    "<think>I go — now\n</think><action>go 0</action>",
    '<img src=x onerror="window.hacked = true"> \u202e naïve',
)
"""Responses whose tokens are shown as texts; the second tries to run code."""


def write_token_run(folder: Path) -> Path:
    """Write a tokenizer of bytes and pairs, and a run of a model with it, one trajectory per response."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        initial_alphabet=alphabet,
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["<action>go 0</action>"] * 9, trainer)
    model = folder / "model"
    model.mkdir()
    tokenizer.save(str(model / "tokenizer.json"))
    end = tokenizer.token_to_id("<|end|>")
    rows = []
    for number, text in enumerate(RESPONSES):
        ids = [*tokenizer.encode(text).ids, end]
        row = {
            "task_id": "t",
            "trajectory": f"t/{number}",
            "step": 0,
            "state": "room",
            "action": "go 0",
            "reward": 0.0,
        }
        chances = [-0.1 * (place % 5) for place in range(len(ids))]
        tokens = {"response_token_ids": ids, "response_logprobs": chances}
        rows.append(
            {
                **row,
                "terminated": True,
                "response": text,
                "prompt": "You are in a room.",
                **tokens,
            }
        )
    with StepWriter(
        folder / "run", config={"policy": {"name": f"transformers:{model}"}}
    ) as writer:
        writer.add_group(rows)
    return folder / "run"


def write_trained(folder: Path) -> None:
    """Write a training run with the advantages it was trained on: 0.25 at step 0, 1.25 at step 1 …, of all but omega.

    The group of omega was filtered, z was aborted, and nothing of the last iteration was trained on.
    """
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_train.advantages.advantage_tables import write_advantages
    from hgpo_train.advantages.registry import as_estimator

    def marked(steps: pl.LazyFrame, *, history_length: int = 1) -> pl.LazyFrame:
        """Give each step a number that no estimator would give."""
        assert history_length == 1
        return steps.with_columns(advantage=pl.col("step") + 0.25)

    training = {
        "advantage.estimator": "hgpo",
        "advantage.parameters": {"gamma": 0.5, "alpha": 2.0},
    }
    with StepWriter(folder, config={"training": training}) as writer:
        for iteration in range(3):
            writer.add_group(small_rows("alpha", iteration))
            writer.add_group(small_rows("omega", iteration))
            writer.commit()
    estimator = as_estimator(marked).with_parameters(gamma=0.5)
    for iteration in range(2):
        steps = scan_steps(folder).filter(iteration=iteration, task_id="alpha")
        write_advantages(
            steps, [estimator], folder / "advantages" / f"{iteration + 1:06d}.parquet"
        )
