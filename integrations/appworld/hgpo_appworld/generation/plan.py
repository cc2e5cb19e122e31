"""The plan of a generated world: everything that `build_root.py` writes, as JSON values. It does not need AppWorld."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hgpo_appworld.apps import ACCOUNTS
from hgpo_appworld.generation import easy, hard, medium
from hgpo_appworld.generation.checks import evaluation
from hgpo_appworld.generation.programs import PASSWORDS, finish, login, solution
from hgpo_appworld.generation.world import NOW, Rows, make_world
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from hgpo_appworld.generation.scenario import Draft, Scenario
    from hgpo_appworld.generation.world import Person, World

SPLITS: Final = ("train", "dev", "test_normal")
PER_SCENARIO: Final = 3
"""The tasks of a scenario, as in AppWorld."""

SCENARIOS: Final = (
    easy.library_size,
    easy.alarm_time,
    easy.tagged_notes,
    medium.most_played,
    medium.money_sent,
    medium.urgent_chores,
    hard.pay_contacts,
    hard.request_shares,
    hard.save_email,
    easy.switch_alarm,
    medium.star_threads,
    hard.note_to_tasks,
    easy.new_file,
    medium.genre_playlist,
    hard.answer_requests,
    medium.text_contacts,
)
"""In the order in which a plan takes them, again from the start when there are more: so few tasks have all splits."""

DEFAULT_TASKS: Final = len(SCENARIOS) * PER_SCENARIO


@dataclass(frozen=True)
class PlannedTask:
    """A task with its id, split and scenario."""

    id: str
    scenario: Scenario
    supervisor: Person
    draft: Draft
    rows: Rows

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON values for `build_root.py`."""
        person = self.supervisor
        scenario = self.scenario
        logins = map(login, scenario.apps)
        end = finish(self.draft.answer_code)
        steps = [PASSWORDS, *logins, *self.draft.steps, end]
        return {
            "id": self.id,
            "split": scenario.split,
            "difficulty": scenario.difficulty,
            "required_apps": list(scenario.apps),
            "instruction": self.draft.instruction,
            "supervisor": {
                "first_name": person.first_name,
                "last_name": person.last_name,
                "email": person.email,
                "phone_number": person.phone,
            },
            "rows": [dict(vars(row)) for row in self.rows.rows],
            "answer": self.draft.answer,
            "private_data": self.draft.private,
            "evaluation": evaluation(scenario.checks),
            "test_data": [
                {"requirement": check.requirement, "label": check.label}
                for check in scenario.checks
            ],
            "solution": solution(steps),
        }


@dataclass(frozen=True)
class Plan:
    """A world and its tasks."""

    seed: int
    world: World
    tasks: tuple[PlannedTask, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values for `build_root.py`."""
        return {
            "seed": self.seed,
            "now": NOW.isoformat(),
            "rows": [dict(vars(row)) for row in self.world.rows.rows],
            "splits": {
                split: [t.id for t in self.tasks if t.scenario.split == split]
                for split in SPLITS
            },
            "tasks": [task.to_dict() for task in self.tasks],
        }


def make_plan(seed: int = 0, tasks: int = DEFAULT_TASKS) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: Seed of the world and the tasks. The first tasks do not depend on how many there are.
        tasks: The number of tasks. A scenario has three; the last may have fewer.

    Raises:
        InputError: If the number of tasks is out of range.
    """
    if not 1 <= tasks <= 10_000:
        raise InputError(f"tasks: expected 1 to 10,000, received {tasks}")
    world = make_world(seed)
    planned: list[PlannedTask] = []
    for number in range(-(-tasks // PER_SCENARIO)):
        scenario = SCENARIOS[number % len(SCENARIOS)]
        rng = random.Random(f"{seed}/{number}")
        name = f"{rng.randrange(16**7):07x}"
        people = rng.sample(world.people, PER_SCENARIO)
        for place, person in enumerate(people[: tasks - len(planned)], 1):
            rows = world.rows.following()
            draft = scenario.make(world, person, rng, rows)
            _add_supervisor(rows, person, draft.instruction)
            planned.append(
                PlannedTask(f"{name}_{place}", scenario, person, draft, rows)
            )
    return Plan(seed, world, tuple(planned))


def _add_supervisor(rows: Rows, person: Person, instruction: str) -> None:
    """Add what the app supervisor knows in a task: the person who gives it, and their passwords."""
    supervisor = rows.add(
        "supervisor",
        "Supervisor",
        first_name=person.first_name,
        last_name=person.last_name,
        email=person.email,
        phone_number=person.phone,
        birthday=person.birthday,
        sex=person.sex,
    )
    for app in ACCOUNTS:
        rows.add(
            "supervisor",
            "AccountPassword",
            supervisor_id=supervisor,
            account_name=app,
            password=person.password(app),
        )
    rows.add("supervisor", "Task", supervisor_id=supervisor, instruction=instruction)
