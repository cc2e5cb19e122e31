"""The original WebShop as a task source, for comparison. It runs a user's checkout in a separate process.

The checkout must contain the results of its setup: the product files in `data/` and an index in `search_engine/`. Its
interpreter must have the packages of its requirements, Java and the spaCy model. If something is missing, the error
names it in one line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import IO, Any, Final, cast, get_args

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError, check_known
from hgpo_envs.task_sampling import task_number
from hgpo_envs.webshop.data.source import GoalTasks
from hgpo_envs.webshop.engine import pages
from hgpo_envs.webshop.engine.engine import RANDOM_QUERY_SEED, ObservationMode
from hgpo_envs.webshop.engine.goals import (
    SHUFFLE_SEED,
    GoalKind,
    checked_seed,
    split_ranges,
)
from hgpo_envs.webshop.engine.shop import GOAL_INDEX

INDEXES: Final = {
    None: "indexes",
    100: "indexes_100",
    1000: "indexes_1k",
    100_000: "indexes_100k",
}
_CODE: Final = "web_agent_site/envs/web_agent_text_env.py"
_WORKER: Final = Path(__file__).with_name("original_worker.py")
_FIXES: Final = {
    "en_core_web_sm": "install the spaCy model (python -m spacy download en_core_web_sm), or name a file with nouns=…",
    "JVM": "install Java 11 or later and set JAVA_HOME",
    "java": "install Java 11 or later and set JAVA_HOME",
    "No module named": "install the packages of its requirements.txt, or name their interpreter with python=…",
    "indexes": "build the index (search_engine/run_indexing.sh), or name another with num_products=…",
    "data/": "fetch its data (setup.sh), or put the files there",
}


class OriginalSource(GoalTasks):
    """The tasks of a checkout of the original.

    Args:
        data: The folder of the checkout.
        goals: `synthetic` or `human`.
        observation_mode: `text` or `text_rich`.
        show_attributes: Whether item pages have the tab `Attributes`.
        price_seed: The seed of the global generator before the original loads.
        shuffle_seed: Must be 233, the only seed of the original.
        python: The interpreter in which the original is installed. None uses the current one.
        num_products: 100, 1,000, 100,000 or None (all): the index to search and the number of products to load.
        nouns: A JSON file with the nouns of titles, used instead of spaCy and its model.

    Raises:
        InputError: If an argument is invalid, no checkout is given, or a part of it is missing.
    """

    def __init__(
        self,
        data: str | Path | None = None,
        goals: GoalKind = "synthetic",
        observation_mode: ObservationMode = "text",
        show_attributes: bool = False,
        price_seed: int = 0,
        shuffle_seed: int = SHUFFLE_SEED,
        *,
        python: str | None = None,
        num_products: int | None = None,
        nouns: str | Path | None = None,
    ) -> None:
        check_known("kind of goals", goals, get_args(GoalKind))
        check_known("observation_mode", observation_mode, get_args(ObservationMode))
        check_known("num_products", num_products, INDEXES)
        if shuffle_seed != SHUFFLE_SEED:
            raise InputError(
                f"shuffle_seed: expected 233 with the original, received {shuffle_seed!r}; omit it"
            )
        price_seed = checked_seed("price_seed", price_seed)
        folder = checked_checkout(data, num_products)
        self.observation_mode: Final = observation_mode
        settings = {
            "checkout": str(folder),
            "observation_mode": observation_mode,
            "human_goals": goals == "human",
            "show_attributes": show_attributes,
            "num_products": num_products,
            "price_seed": price_seed,
            "random_query_seed": RANDOM_QUERY_SEED,
            "nouns": str(nouns) if nouns else None,
        }
        self.process: Final = OriginalProcess(python or sys.executable, settings)
        self._goals = cast("list[list[str]]", self.process.answer["goals"])
        self.splits = split_ranges(len(self._goals))
        self._versions = {
            "backend": f"original at {folder}",
            "nouns": str(nouns) if nouns else "spacy",
            "goals": f"{goals}, prices {price_seed}, order {shuffle_seed}",
        }

    def index(self, task_id: str | int) -> int:
        """Return the index of a task's goal. Raises UnknownTask if there is none."""
        return task_number(task_id, len(self._goals), GOAL_INDEX)

    def task(self, task_id: str | int) -> Task:
        """Return a goal as a task. Raises UnknownTask if there is none."""
        index = self.index(task_id)
        return self._task(index, *self._goals[index])

    def engine(self) -> OriginalEngine:
        """Return an engine that uses a new environment in the original's process."""
        return OriginalEngine(self)


class OriginalEngine:
    """Plays tasks in one of the original's environments."""

    def __init__(self, source: OriginalSource) -> None:
        self._source = source
        self._number: int | None = None
        self._instruction = ""
        self._part = ""
        self._score = 0.0

    def start(self, task_id: str | int) -> State:
        """Start a task. Raises UnknownTask if there is none."""
        index = self._source.index(task_id)
        self._instruction = self._source.task(task_id).instruction
        answer = self._source.process.ask({"environment": self._number, "goal": index})
        self._number = answer["environment"]
        self._score = 0.0
        self._part = pages.task_part(answer["page"])
        return self._state(answer, valid=True)

    def act(self, command: str) -> State:
        """Execute a command. If the original raises an error, the page stays and `info["error"]` contains the error."""
        before = self._clickables
        answer = self._source.process.ask(
            {"environment": self._number, "command": command}
        )
        name, argument = pages.parse_action(command)
        listed = name == "click" and argument in before and argument != "search"
        return self._state(
            answer,
            valid=(listed or (name == "search" and argument != ""))
            and "error" not in answer,
        )

    def _state(self, answer: dict[str, Any], *, valid: bool) -> State:
        text = answer["page"]
        available = answer["available_actions"]
        self._clickables = frozenset(available["clickables"])
        if answer["done"]:
            self._score = answer["reward"]
        plain = self._source.observation_mode == "text"
        state = (
            pages.state_text(text, self._part)
            if plain
            else pages.rich_state_text(text, self._instruction)
        )
        info = {
            "page": text,
            "available_actions": available,
            "url": answer["url"],
            **(answer["parts"] or {}),
        }
        if "error" in answer:
            info["error"] = answer["error"]
        actions = pages.action_list(
            available["has_search_bar"], available["clickables"]
        )
        done = answer["done"]
        reward = answer["reward"]
        return State(
            state,
            actions,
            valid,
            done,
            self._score == 1.0,
            reward,
            self._score,
            info,
        )


class OriginalProcess:
    """The process in which the original runs. It ends when this object is deleted.

    Args:
        python: The interpreter.
        settings: The worker's settings; see `hgpo_envs.webshop.reference.original_worker.Original`.

    Raises:
        InputError: If the original cannot be loaded.
    """

    def __init__(self, python: str, settings: dict[str, Any]) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's interpreter
                [python, str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._complaints.close()
            raise InputError(
                f"cannot run {python}: {error.strerror}; name the original's interpreter with python=…"
            ) from None
        self.pid: Final = self._process.pid
        self.close = weakref.finalize(
            self,
            _end,
            self._process,
            self._complaints,
        )
        try:
            self.answer: Final = self.ask(settings)
            failure = self.answer.get("failed")
        except RuntimeError as error:
            failure = str(error)
        if failure is not None:
            self.close()
            raise InputError(_with_fix(str(failure)))

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer. Raises RuntimeError if the process has died."""
        sink = self._process.stdin
        source = self._process.stdout
        assert sink
        assert source
        try:
            print(json.dumps(request), file=sink, flush=True)
            line = source.readline()
        except (BrokenPipeError, ValueError):
            line = ""
        if not line:
            raise RuntimeError(
                f"the original WebShop has stopped: {self._last_words()}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        if self._complaints.closed:
            return "its process was closed"
        self._complaints.seek(0)
        lines = self._complaints.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it printed no error"


def _end(process: subprocess.Popen[str], complaints: IO[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, complaints):
        if stream:
            stream.close()


def checked_checkout(checkout: str | Path | None, num_products: int | None) -> Path:
    """Return the checkout's folder. Raises InputError if a part of it is missing."""
    if checkout is None:
        raise InputError(
            "the original WebShop needs a checkout: give its folder, data=…"
        )
    folder = Path(checkout).resolve()
    if not (folder / _CODE).is_file():
        raise InputError(
            f"no WebShop checkout in {folder} (it has no {_CODE}); git clone princeton-nlp/WebShop first"
        )
    if not any((folder / "data").glob("items_shuffle*.json")):
        raise InputError(
            f"{folder / 'data'} has no items_shuffle*.json; {_FIXES['data/']}"
        )
    index = folder / "search_engine" / INDEXES[num_products]
    if not any(index.glob("segments_*")):
        raise InputError(f"no search index in {index}; {_FIXES['indexes']}")
    return folder


def _with_fix(failure: str) -> str:
    """Return an error line with the failure and its fix."""
    line = " ".join(failure.split())[:300]
    fix = next(
        (fix for sign, fix in _FIXES.items() if sign in line),
        "check whether the checkout runs by itself",
    )
    return f"the original WebShop does not start: {line}; {fix}"
