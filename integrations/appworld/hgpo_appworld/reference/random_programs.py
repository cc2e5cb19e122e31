"""Random programs over AppWorld's APIs, made from a seed and the documentation of the APIs.

They log in, call APIs with right and wrong arguments, read outputs in loops, raise errors, have syntax errors, use the
clock and random numbers, try what AppWorld forbids, and complete the task with right and wrong answers. What is known
to differ between two runs of the original is left out: object addresses and `uuid4`. So are lone surrogates, which make
the original's world unusable, `KeyboardInterrupt`, which it lets through, and empty programs, which the engine refuses
in its own words.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hgpo_appworld.players.expert import split_solution
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

STEPS: Final = 5
"""The programs of an episode."""

_ACCOUNTS: Final = (
    "file_system",
    "gmail",
    "phone",
    "simple_note",
    "spotify",
    "todoist",
    "venmo",
    "splitwise",
    "amazon",
)
_WORDS: Final = (
    "River",
    "Packing",
    "budget",
    "jazz",
    "friend",
    "Moving house",
    "2023-01-01",
    "07:30",
    "~/notes/a.txt",
)
_SNIPPETS: Final = (
    "print(1 / 0)",
    "print(undefined_name)",
    "print('é', '日本', '🙂', sep='\\n')",
    "print(DateTime.now(), datetime.datetime.now())",
    "print(random.random(), random.choice('abc'))",
    "print(sorted({'b': 1, 'a': 2}), {3, 1, 2})",
    "print([1, 2, 3]); print({'a': [1, {'b': None}]}); print((1, 'two'))",
    "raise ValueError('no\\nluck')",
    "assert 1 == 2, 'unequal'",
    "def double(x):\n    return 2 * x\nprint(double(21))",
    "for i in range(3):\n    print(i, end=' ')",
    "x = 1\nx +",
    "if True:\nprint('badly indented')",
    "exit()",
    "open('/etc/hostname').read()",
    "import os\nprint(os.listdir('/'))",
    "import subprocess\nsubprocess.run(['ls'])",
    "input('what now?')",
    "eval('1 + 1')",
    "print('x' * 5000)",
    "'an expression has no output'",
    "%timeit 1",
    "!ls",
    "import time\nprint(time.time())",
    "print(apis.nothing.at_all())",
    "print(apis.spotify.no_such_api())",
    "print(Counter('hello').most_common(2))",
    "print(re.findall(r'\\d+', 'a1b22'))",
    "import sys\nsys.stdout.write('written\\n')",
    "import warnings\nwarnings.warn('careful')",
    "print(requester.request('supervisor', 'show_profile'))",
)


@dataclass(frozen=True)
class Episode:
    """The programs that are executed in a task, one after the other until the task is completed."""

    task: str
    programs: tuple[str, ...]


def random_episodes(root: Path, number: int, seed: int = 0) -> list[Episode]:
    """Return random episodes over the tasks and APIs of a root folder.

    Raises:
        InputError: If the folder has no tasks or no documentation of APIs.
    """
    docs = {
        path.stem: json.loads(path.read_text("utf-8"))
        for path in sorted(root.glob("data/api_docs/standard/*.json"))
    }
    tasks = sorted(path.name for path in root.glob("data/tasks/*"))
    if not docs or not tasks:
        raise InputError(
            f"{root}: expected AppWorld's root with tasks and API documentation, received none"
        )
    return [
        _episode(root, docs, tasks, random.Random(f"{seed}/{n}")) for n in range(number)
    ]


def _episode(
    root: Path, docs: dict[str, Any], tasks: list[str], rng: random.Random
) -> Episode:
    task = rng.choice(tasks)
    if rng.random() < 0.2:
        return Episode(task, _solved(root, task, docs, rng))
    apps = rng.sample(_ACCOUNTS, 2)
    first = "\n".join(_log_in(app, rng) for app in apps)
    middle = [
        _program(docs, (*apps, "supervisor", "api_docs"), rng) for _ in range(STEPS - 2)
    ]
    last = rng.choice(
        [
            "apis.supervisor.complete_task()",
            f"apis.supervisor.complete_task(answer={_value({'type': 'string'}, rng)})",
            f"apis.supervisor.complete_task(answer={rng.randrange(20)})",
            "apis.supervisor.complete_task(status='fail')",
            _program(docs, (*apps, "supervisor"), rng),
        ]
    )
    return Episode(task, (first, *middle, last))


def _solved(
    root: Path, task: str, docs: dict[str, Any], rng: random.Random
) -> tuple[str, ...]:
    """Return the task's solution in as many programs as an episode has, perhaps with a call of another API."""
    path = root / "data" / "tasks" / task / "ground_truth" / "compiled_solution.py"
    steps = split_solution(path.read_text("utf-8"), task)
    if rng.random() < 0.5:
        steps.insert(len(steps) - 1, _call(docs, "supervisor", rng))
    while len(steps) > STEPS:
        place = rng.randrange(len(steps) - 1)
        steps[place : place + 2] = ["\n".join(steps[place : place + 2])]
    return tuple(steps)


def _log_in(app: str, rng: random.Random) -> str:
    user = "phone_number" if app == "phone" else "email"
    password = f"next(a['password'] for a in apis.supervisor.show_account_passwords() if a['account_name'] == {app!r})"
    if rng.random() < 0.1:
        password = "'wrong'"  # noqa: S105
    return (
        f"{app}_token = apis.{app}.login(username=apis.supervisor.show_profile()[{user!r}], password={password})"
        "['access_token']\n"
        f"print({app}_token)"
    )


def _program(docs: dict[str, Any], apps: tuple[str, ...], rng: random.Random) -> str:
    """Return a program of one to four statements."""
    parts = []
    for _ in range(rng.randrange(1, 5)):
        if rng.random() < 0.2:
            parts.append(rng.choice(_SNIPPETS))
            continue
        call = _call(docs, rng.choice(apps), rng)
        # an error ends the program, so most calls are tried
        tried = (
            f"try:\n    {call}\nexcept Exception as error:\n    print(str(error)[:300])"
        )
        parts.append(call if rng.random() < 0.3 else tried)
    return "\n".join(parts)


def _call(docs: dict[str, Any], app: str, rng: random.Random) -> str:
    """Return a statement that calls a random API of an app and prints what it returns."""
    name, doc = rng.choice(sorted(docs[app].items()))
    arguments = []
    for parameter in doc["parameters"]:
        if rng.random() < (0.05 if parameter["required"] else 0.6):
            continue
        arguments.append(f"{parameter['name']}={_argument(app, parameter, rng)}")
    if rng.random() < 0.03:
        arguments.append("no_such_parameter=1")
    return f"print(apis.{app}.{name}({', '.join(arguments)}))"


def _argument(app: str, parameter: dict[str, Any], rng: random.Random) -> str:
    if parameter["name"] == "access_token":
        return f"{app}_token" if rng.random() < 0.95 else "'wrong'"
    if parameter["name"] == "file_system_access_token":
        return "file_system_token"
    return _value(parameter, rng)


def _value(parameter: dict[str, Any], rng: random.Random) -> str:
    """Return a value for a parameter, mostly of its type."""
    choices = [
        one for one in parameter.get("constraints", ()) if one.startswith("value in ")
    ]
    if choices and rng.random() < 0.8:
        return repr(
            rng.choice(
                json.loads(choices[0].removeprefix("value in ").replace("'", '"'))
            )
        )
    kind = (
        parameter["type"]
        if rng.random() < 0.95
        else rng.choice(["integer", "string", "boolean"])
    )
    if kind.startswith("list"):
        return f"[{_value({'type': kind[5:-1]}, rng)}]"
    if "integer" in kind:
        return str(rng.choice([0, 1, 2, 3, 5, 8, 20, -1, rng.randrange(60)]))
    if "number" in kind:
        return str(rng.choice([0.5, 3, 12.25, -1]))
    if "boolean" in kind:
        return str(rng.random() < 0.5)
    if "email" in parameter.get("name", ""):
        return "apis.supervisor.show_profile()['email']"
    return repr(rng.choice(_WORDS))
