"""A worker process that runs the original WebShop and answers each request with one line of JSON.

`hgpo_envs.webshop.reference.original` starts it with the interpreter in which the original is installed (Python 3.8 or
later), so it does not import this package. All environments of the process share one server, and each has its own
session.

Source: WebShop's `web_agent_site/envs/web_agent_text_env.py` (`SimServer`, `WebAgentTextEnv`).
"""

from __future__ import annotations

import json
import os
import random
import sys
import types
from pathlib import Path
from typing import Any

BASE_URL = "http://127.0.0.1:3000"


def _stand_in_tagger(nouns: dict[str, list[str]]) -> types.ModuleType:
    """Return a replacement for the module `spacy` whose pipeline returns the recorded nouns of titles."""
    module = types.ModuleType("spacy")

    def load(_name: str) -> Any:  # noqa: ANN401 - the part of spaCy's pipeline that the original uses
        return lambda title: [
            types.SimpleNamespace(text=noun, pos_="NOUN")
            for noun in nouns.get(title, [])
        ]

    module.load = load  # type: ignore[attr-defined]
    return module


class Original:
    """The original's server and environments.

    Args:
        settings: checkout, observation_mode, human_goals, show_attributes, num_products, price_seed,
            random_query_seed, nouns.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        sys.path.insert(0, settings["checkout"])
        if settings["nouns"]:
            sys.modules["spacy"] = _stand_in_tagger(
                json.loads(Path(settings["nouns"]).read_text(encoding="utf-8"))
            )
        from web_agent_site.envs import web_agent_text_env as site  # type: ignore[import-not-found, unused-ignore]

        self._site = site
        self._mode = settings["observation_mode"]
        self._chance = settings["random_query_seed"]
        random.seed(settings["price_seed"])
        self.server = site.SimServer(
            BASE_URL,
            site.DEFAULT_FILE_PATH,
            num_products=settings["num_products"],
            human_goals=settings["human_goals"],
            show_attrs=settings["show_attributes"],
        )
        self._environments: list[Any] = []
        self._pages: list[str] = []

    def goals(self) -> list[list[str]]:
        """Return the instruction and category of each goal, in the shuffled order."""
        return [
            [goal["instruction_text"], goal["category"]] for goal in self.server.goals
        ]

    def start(self, number: int | None, goal: int) -> dict[str, Any]:
        """Start a goal in the environment with a number, or in a new one if the number is None."""
        if number is None:
            number = len(self._environments)
            prefix = f"e{number}-"
            self._environments.append(
                self._site.WebAgentTextEnv(
                    self._mode, server=self.server, session_prefix=prefix
                )
            )
            self._pages.append("")
        environment = self._environments[number]
        self._pages[number], _ = environment.reset(session=goal)
        random.seed(self._chance)  # only `<r>` draws from here on
        return self._answer(number, reward=0.0, done=False)

    def act(self, number: int, command: str) -> dict[str, Any]:
        """Execute a command. If the original raises an error, the page stays and the answer contains the error."""
        environment = self._environments[number]
        try:
            self._pages[number], reward, done, _ = environment.step(command)
        except Exception as error:  # noqa: BLE001 - any error of the original is part of the answer
            return {
                **self._answer(number, reward=0.0, done=False),
                "error": f"{type(error).__name__}: {error}",
            }
        return self._answer(number, reward=reward, done=done)

    def _answer(self, number: int, *, reward: float, done: bool) -> dict[str, Any]:
        environment = self._environments[number]
        session = self.server.user_sessions[environment.session]
        return {
            "environment": number,
            "page": self._pages[number],
            "url": environment.state["url"].replace(
                f"/{environment.session}", "/" + environment.session.split("-")[1]
            ),
            "available_actions": environment.get_available_actions(),
            "reward": float(reward),
            "done": bool(done),
            "parts": session.get("verbose_info") if done else None,
        }


def main() -> None:
    """Read the settings and then requests from standard input, and write answers to the original standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # because the original prints while it loads

    def send(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        original = Original(json.loads(sys.stdin.readline()))
    except BaseException as error:
        send({"failed": f"{type(error).__name__}: {error}"})
        raise
    send({"goals": original.goals()})
    for line in sys.stdin:
        request = json.loads(line)
        if "goal" in request:
            send(original.start(request["environment"], request["goal"]))
        else:
            send(original.act(request["environment"], request["command"]))


if __name__ == "__main__":
    main()
