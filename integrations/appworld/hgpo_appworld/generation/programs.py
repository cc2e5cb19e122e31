"""Solution programs, as the steps in which a model would write them: look up, log in, read, decide, act, finish."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING, Final

from hgpo_appworld.players.expert import STEP_MARKER

if TYPE_CHECKING:
    from collections.abc import Sequence

PASSWORDS: Final = (
    "passwords = {entry['account_name']: entry['password'] for entry in apis.supervisor.show_account_passwords()}\n"
    "print(sorted(passwords))"
)


def login(app: str) -> str:
    """Return the step that logs in to an app. Its token is named after the app."""
    user = "phone_number" if app == "phone" else "email"
    return (
        f"{app}_token = apis.{app}.login(username=apis.supervisor.show_profile()[{user!r}], "
        f"password=passwords[{app!r}])['access_token']\n"
        f"print('logged in to {app}')"
    )


def all_pages(name: str, call: str, shown: str = "") -> str:
    """Return the step that reads all pages of a list.

    Args:
        name: The variable for the list.
        call: The call of the API, without its closing bracket and without the arguments of pages.
        shown: What to print. Empty prints the number of entries.

    >>> print(all_pages("alarms", "apis.phone.show_alarms(access_token=phone_token"))
    alarms, page = [], 0
    while batch := apis.phone.show_alarms(access_token=phone_token, page_index=page, page_limit=20):
        alarms += batch
        page += 1
    print(len(alarms), 'entries')
    """
    shown = shown or f"len({name}), 'entries'"
    return (
        f"{name}, page = [], 0\n"
        f"while batch := {call}, page_index=page, page_limit=20):\n"
        f"    {name} += batch\n"
        "    page += 1\n"
        f"print({shown})"
    )


def finish(answer: str = "") -> str:
    """Return the step that completes the task, with an expression for the answer."""
    return f"apis.supervisor.complete_task({f'answer={answer}' if answer else ''})"


def solution(steps: Sequence[str]) -> str:
    """Return the text of a solution file: AppWorld's function `solution`, whose body has a marker before each step.

    >>> print(solution(["x = 1", "print(x)"]))
    def solution(apis, requester):
        # %%
        x = 1
        # %%
        print(x)
    """
    body = "\n".join(f"{STEP_MARKER}\n{step}" for step in steps)
    return f"def solution(apis, requester):\n{indent(body, '    ')}\n"
