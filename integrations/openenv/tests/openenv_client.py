"""Plays episodes with OpenEnv's own client and prints what it received, as JSON. Runs in a Python that has OpenEnv.

python openenv_client.py ADDRESS [TOKEN] < games        a game is a reset's arguments and a list of actions
"""

import contextlib
import json
import sys

from openenv.core import GenericEnvClient


def client(address: str, token: str | None):
    """Return the synchronous client: the only one of early versions."""
    # The tests look at what is received, and not at how long it takes.
    patient = {"connect_timeout_s": 3600, "message_timeout_s": 3600}
    options = {"headers": {"Authorization": f"Bearer {token}"}} if token else {}
    env = GenericEnvClient(base_url=address, **patient, **options)
    return env.sync() if hasattr(env, "sync") else env


def play(env, reset: dict, actions: list[str]) -> list[dict]:
    """Play one game: what each call has returned."""
    results = [
        env.reset(**reset),
        *(env.step({"action": action}) for action in actions),
    ]
    return [
        {"observation": one.observation, "reward": one.reward, "done": one.done}
        for one in results
    ]


def main() -> None:
    """Play all games in one session, with an error between them."""
    games = []
    errors = []
    states = []
    with client(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None) as env:
        for game in json.load(sys.stdin):
            with contextlib.suppress(RuntimeError):
                env.step({"wrong": 1})
                raise AssertionError("a wrong action was accepted")
            try:
                env.reset(task="no such task")
            except RuntimeError as error:
                errors.append(str(error))
            games.append(play(env, game["reset"], game["actions"]))
            states.append(env.state())
    json.dump({"games": games, "errors": errors, "states": states}, sys.stdout)


if __name__ == "__main__":
    main()
