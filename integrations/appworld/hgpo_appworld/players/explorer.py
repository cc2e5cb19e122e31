"""The explorer: reads the documentation of apps and APIs first, as a model must, and then acts.

It uses only the instruction and what its programs print. It asks for the list of apps, for the APIs of the apps that
the instruction needs, and for the documentation of the APIs that it will call; then it looks up passwords, logs in and
executes the programs of `hgpo_appworld.players.skills`. Instructions that it does not understand it explores and
then gives up.
"""

from __future__ import annotations

import copy
import re
from collections import deque
from typing import TYPE_CHECKING, Final

from hgpo_appworld.apps import ACCOUNTS
from hgpo_appworld.players.skills import Attempt, find_skill

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task

_TRIES: Final = 3
"""How often a program is tried whose output does not show. In a mixture, another policy may have taken the turn."""

_LIST_APPS: Final = Attempt(
    "print(apis.api_docs.show_app_descriptions())", r'"name": "supervisor"'
)
_PASSWORDS: Final = Attempt(
    "accounts = apis.supervisor.show_account_passwords()\nprint(accounts)",
    r'"account_name": "\w+"',
)
_GIVE_UP: Final = Attempt("apis.supervisor.complete_task(status='fail')")


class ExplorerPlayer:
    """A player that uses the instruction and outputs only. It plays official tasks too, but understands few of them."""

    def __init__(self) -> None:
        self._left: deque[Attempt] = deque()
        self._tried = 0

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Plan what to look up and what to do for a task's instruction."""
        del state, engine
        self._left = deque(plan(task.instruction))
        self._tried = 0

    def fork(self, engine: Engine | None) -> ExplorerPlayer:
        """Return an independent copy. The engine is not used."""
        del engine
        return copy.deepcopy(self)

    def act(self, state: State) -> str:
        """Return the first program whose output has not been seen yet; after three tries, the next one."""
        shows = self._left[0].shows
        seen = bool(shows) and re.search(shows, state.text) is not None
        if self._tried and (seen or self._tried == _TRIES) and len(self._left) > 1:
            self._left.popleft()
            self._tried = 0
        self._tried += 1
        return self._left[0].program


def plan(instruction: str) -> list[Attempt]:
    """Return what to look up and what to do for an instruction."""
    understood = find_skill(instruction)
    lowered = instruction.lower()
    apps = (
        understood[0].apps
        if understood
        else [app for app in ACCOUNTS if app.replace("_", " ") in lowered]
    )
    apis = [
        *(understood[0].apis if understood else ()),
        *(f"{app}.login" for app in apps),
    ]
    return [
        _LIST_APPS,
        *(
            _list_apis(
                app, next((api for api in apis if api.startswith(f"{app}.")), "")
            )
            for app in apps
        ),
        *(_read_doc(*api.split(".")) for api in apis),
        _PASSWORDS,
        *(_log_in(app) for app in apps),
        *(understood[0].attempts(understood[1]) if understood else [_GIVE_UP]),
    ]


def _list_apis(app: str, wanted: str) -> Attempt:
    """Return the attempt that lists the APIs of an app, which must show the one that is wanted first."""
    name = wanted.partition(".")[2]
    return Attempt(
        f"print(apis.api_docs.show_api_descriptions(app_name={app!r}))",
        f'"name": "{name}",',
    )


def _read_doc(app: str, api: str) -> Attempt:
    return Attempt(
        f"print(apis.api_docs.show_api_doc(app_name={app!r}, api_name={api!r}))",
        rf'"app_name": "{app}",\s*"api_name": "{api}"',
    )


def _log_in(app: str) -> Attempt:
    user = "phone_number" if app == "phone" else "email"
    return Attempt(
        f"password = next(entry['password'] for entry in accounts if entry['account_name'] == {app!r})\n"
        f"{app}_key = apis.{app}.login(username=apis.supervisor.show_profile()['{user}'], password=password)"
        "['access_token']\n"
        f"print('{app}: logged in')",
        f"{app}: logged in",
    )
