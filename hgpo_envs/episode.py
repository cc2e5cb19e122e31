"""One environment without Gymnasium: an engine with memory, prompts, response parsing and the step limit.

`TextEnv`, `TextVectorEnv` and the rollout collector are all made of episodes. An episode is deterministic: task and
texts decide everything. Copies and pickles therefore hold the task and the commands so far, and play them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import DEFAULT_DEPTH
from hgpo_envs.memory import Memory
from hgpo_envs.prompts import PromptTemplate, load_template
from hgpo_envs.responses import DEFAULT_FALLBACK_CHARACTERS, FALLBACK_CHARACTERS, numbered, parse
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task
    from hgpo_envs.sources import SharedSource

ACTION_FORMATS: Final = ("command", "response", "number")
"""What an action is: the bare command, a model's whole response, or the number of an admissible action, from 1."""

LONGEST_COMMAND: Final = 1 << 14
"""Characters of a command that are executed; a longer one is cut there, so that no policy can fill the memory with
its history, its prompts and its info."""

_RESERVED: Final = frozenset({"task", "task_id", "task_type", "split", "versions", "step", "action"})


@dataclass(frozen=True)
class Settings:
    """What an episode depends on besides its task.

    Attributes:
        history_length: K, how many past pairs the prompt shows.
        history_depth: The deepest history hash that observations hold.
        action_format: ``command``, ``response`` or ``number``.
        max_steps: The step limit; reaching it truncates.
        template: The prompt template.
        fallback_characters: How much of a response without action tags is taken for the action.
    """

    template: PromptTemplate
    history_length: int = 2
    history_depth: int = DEFAULT_DEPTH
    action_format: str = "command"
    max_steps: int = 50
    fallback_characters: int = field(default=DEFAULT_FALLBACK_CHARACTERS)

    def __post_init__(self) -> None:
        for name, least in (("history_length", 0), ("history_depth", 0), ("max_steps", 1), ("fallback_characters", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name}: expected an integer of at least {least}, got {value!r}")
        if self.action_format not in ACTION_FORMATS:
            raise InputError(unknown("action_format", self.action_format, ACTION_FORMATS))


def settings_for(benchmark: str, *, prompt_template: str | None = None, **values: Any) -> Settings:
    """The settings of a benchmark's environments: its template and its response rules unless others are given.

    Args:
        benchmark: The task source's name.
        prompt_template: A Jinja file that replaces the package's own.
        values: Other attributes of `Settings`.
    """
    values.setdefault("fallback_characters", FALLBACK_CHARACTERS.get(benchmark, DEFAULT_FALLBACK_CHARACTERS))
    return Settings(template=load_template(prompt_template, benchmark), **values)


class Episode:
    """One task being played; start it before use.

    Where the engine lives elsewhere (a subprocess), `start` and `act` are taken in two halves: `begin` with the state
    that the engine's start gave, then `read` for each text and `observe` with the state that its command led to.

    Args:
        shared: The tasks.
        settings: Prompts, parsing, limits.
        engine: What plays; None makes one from the source.

    Attributes:
        task: The task being played.
        state: What the engine shows now.
        action: The command that led here; empty at the start.
        action_valid: With ``action_format="response"`` whether the response kept the form (verl-agent's flag, the one
            the invalid-action penalty looks at); else whether the command did something the benchmark offers. True at
            the start.
        terminated: The task has ended.
        truncated: The step limit was reached first.
    """

    task: Task
    state: State

    def __init__(self, shared: SharedSource, settings: Settings, engine: Engine | None = None) -> None:
        self.shared, self.settings = shared, settings
        self._engine = engine
        self._memory = Memory(settings.history_length)
        self._journal: list[tuple[str, bool | None]] = []
        self.action, self.action_valid = "", True
        self.terminated = self.truncated = False

    @property
    def engine(self) -> Engine:
        """What plays; made when it is first needed."""
        if self._engine is None:
            self._engine = self.shared.source.engine()
        return self._engine

    @property
    def started(self) -> bool:
        """Whether a task is being played."""
        return hasattr(self, "state")

    @property
    def done(self) -> bool:
        """Whether the episode has ended, either way."""
        return self.terminated or self.truncated

    @property
    def steps_taken(self) -> int:
        """Actions so far."""
        return self._memory.steps_taken

    def start(self, task_id: str) -> None:
        """Begins a task.

        Raises:
            InputError: The source knows no such task.
        """
        try:
            task, state = self.shared.source.task(task_id), self.engine.start(task_id)
        except InputError:
            raise
        except KeyError as error:
            line = str(error.args[0]) if error.args else ""
            raise InputError(line if " " in line else f"{self.shared.source.name} has no task {task_id!r}") from error
        self.begin(task, state)

    def begin(self, task: Task, state: State) -> None:
        """Begins a task whose first state is known."""
        self.task, self.state = task, state
        self._memory.clear()
        self._journal.clear()
        self.action, self.action_valid = "", True
        self.terminated, self.truncated = state.terminated, False

    def act(self, text: str) -> None:
        """Carries out a command or a response, by the action format. Never raises for any text."""
        command, well_formed = self.read(text)
        self.observe(command, well_formed, self.engine.act(command))

    def read(self, text: str) -> tuple[str, bool | None]:
        """The command in a text, and whether the text kept the form of a response (None for a bare command).

        Lone surrogates are replaced (`hgpo_envs.unicode_text.clean_text`), and a command is cut after
        `LONGEST_COMMAND`.
        """
        text = clean_text(text)
        if self.settings.action_format == "response":
            response = parse(text, self.settings.fallback_characters)
            return response.action[:LONGEST_COMMAND], response.valid
        text = text[:LONGEST_COMMAND]
        return (numbered(text, self.state.actions) if self.settings.action_format == "number" else text), None

    def observe(self, command: str, well_formed: bool | None, state: State) -> None:
        """Records a command that was executed and the state that it led to."""
        self._journal.append((command, well_formed))
        self._memory.store(self.state.text, command)
        self.state = state
        self.action = command
        self.action_valid = self.state.valid if well_formed is None else well_formed
        self.terminated = self.state.terminated
        self.truncated = not self.terminated and self.steps_taken >= self.settings.max_steps

    def prompt(self, history_length: int | None = None) -> str:
        """What the policy reads now.

        Args:
            history_length: Shows at most this many past pairs, where a prompt must be shorter; None shows all K.
        """
        return self.settings.template.render(
            task=self.task.instruction,
            observation=self.state.text,
            admissible_actions=list(self.state.actions),
            memory=self._memory,
            max_steps=self.settings.max_steps,
            action_format=self.settings.action_format,
            history_length=history_length,
        )

    def info(self) -> dict[str, Any]:
        """Gymnasium's info: new objects at every call, safe to keep and to change."""
        benchmark_info = {key: copy_plain_data(value) for key, value in self.state.info.items() if key not in _RESERVED}
        return {
            **benchmark_info,
            "task": self.task.instruction,
            "task_id": self.task.id,
            "task_type": self.task.task_type,
            "split": self.task.split,
            "versions": dict(self.task.versions),
            "step": self.steps_taken,
            "action": self.action,
            "action_valid": self.action_valid,
            "action_admissible": self.state.valid,
            "admissible_actions": list(self.state.actions),
            "won": self.state.won,
            "score": self.state.score,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {
            "shared": self.shared,
            "settings": self.settings,
            "task_id": self.task.id if self.started else None,
            "journal": list(self._journal),
        }

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(kept["shared"], kept["settings"])  # type: ignore[misc]
        if kept["task_id"] is not None:
            self.start(kept["task_id"])
            for command, well_formed in kept["journal"]:
                self.observe(command, well_formed, self.engine.act(command))


def check_template(shared: SharedSource, settings: Settings, task_id: str) -> None:
    """Renders a user's prompt template for the first two states of a task, so that a broken one is refused at once.

    A template may still fail at a later state: then that rollout fails. If the environment itself fails here, nothing
    is raised, because it is not known whether the template can be used.

    Args:
        shared: The tasks.
        settings: With the template.
        task_id: The task that is played for one step, in an engine of its own.

    Raises:
        InputError: The template fails, or costs more than a rendering may.
    """
    if settings.template.trusted:
        return
    episode = Episode(shared, settings)
    for _ in range(2):
        try:
            _move_on(episode, task_id)
        except (Exception, SystemExit):  # noqa: BLE001 - whatever the environment raises
            return
        if episode.done:
            return
        episode.prompt()


def _move_on(episode: Episode, task_id: str) -> None:
    """Starts the task, or takes its first admissible action."""
    if not episode.started:
        episode.start(task_id)
    else:
        command = next(iter(episode.state.actions), "")
        episode.observe(command, None, episode.engine.act(command))


def copy_plain_data(value: object) -> object:
    """A copy of plain nested data: dictionaries, lists and tuples anew, everything else as it is."""
    if isinstance(value, dict):
        return {key: copy_plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(
            [item if type(item) is str else copy_plain_data(item) for item in value]
        )  # most are lists of texts
    return value
