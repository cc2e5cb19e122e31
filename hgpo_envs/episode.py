"""Episodes: an engine with memory, prompts, response parsing and the step limit, without Gymnasium.

`TextEnv`, `TextVectorEnv` and the rollout collector use episodes. An episode is a deterministic function of its task
and the texts so far. Copies and pickles therefore store the task and the commands so far, and replay them. Forks
(`Episode.fork`) copy the state instead, if the engine supports it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

from hgpo_envs.environment_spec import spec_named
from hgpo_envs.episode_options import EpisodeOptions
from hgpo_envs.errors import InputError, check_known
from hgpo_envs.hashing import text_hash
from hgpo_envs.memory import Pair
from hgpo_envs.plugins import answer_of, import_object
from hgpo_envs.prompts import PromptTemplate, load_template, turn_template
from hgpo_envs.responses import Response, action_text, admissible, numbered, parse
from hgpo_envs.state_keys import state_key
from hgpo_envs.task_wordings import warn_of_other_wordings
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from hgpo_envs.engine import Engine, State, Task
    from hgpo_envs.memory import Memory
    from hgpo_envs.sources import SharedSource

_TYPES: Final = get_type_hints(EpisodeOptions)

PROMPT_STYLES: Final[tuple[str, ...]] = get_args(_TYPES["prompt_style"])
"""The styles of prompts: one prompt per step with the last pairs, or the next message of a growing conversation."""

ACTION_FORMATS: Final[tuple[str, ...]] = get_args(_TYPES["action_format"])
"""The formats of an action: a command, a model's whole response, or the number of an admissible action, from 1."""

LONGEST_COMMAND: Final = 1 << 14
"""The maximum length of a command in characters. Longer commands are truncated, because the history, prompts and info
contain commands and would otherwise use unlimited memory. Tool calls are not: a part of a call is none."""


@dataclass(frozen=True, kw_only=True)
class Settings(EpisodeOptions):
    """The settings of an episode: what the user chose, and what the environment's specification adds.

    `settings_for` makes and checks them.
    """

    template: PromptTemplate
    """The prompt template."""
    parse_response: Callable[[str], Response] = parse
    """`EnvironmentSpec.parse_response`."""
    state_key: Callable[[str], str] | None = None
    """`EnvironmentSpec.state_key` as a function."""
    tools: Sequence[Mapping[str, Any]] = ()
    """`EnvironmentSpec.tools`."""
    turn_template: PromptTemplate | None = None
    """Renders the messages after the first one in a conversation; None uses `template`."""
    memory: Memory | None = None
    """`EnvironmentSpec.memory`; None shows the last `history_length` pairs."""


def settings_for(
    benchmark: str,
    *,
    prompt_template: str | None = None,
    memory: Memory | str | None = None,
    **values: Any,
) -> Settings:
    """Return the settings of a benchmark's environments, with its template and response rules as defaults.

    Args:
        benchmark: The task source's name.
        prompt_template: What replaces the benchmark's prompt template (`hgpo_envs.env.TextEnv`).
        memory: What replaces the benchmark's memory, as a function or as ``module:function``.
        values: Other attributes of `Settings`.

    Raises:
        InputError: If a value is out of range or the template cannot be read.
    """
    spec = spec_named(benchmark)
    if spec is not None:
        if not spec.admissible_actions and values.get("action_format") == "number":
            raise InputError(
                f"action_format: expected 'command' or 'response' for {benchmark}, received 'number': "
                "it has no list of admissible actions to number"
            )
        key = (
            state_key(spec.state_key)
            if isinstance(spec.state_key, str)
            else spec.state_key
        )
        values = {
            "parse_response": spec.parser,
            "state_key": key,
            "tools": spec.tools,
        } | values
        memory = spec.memory if memory is None else memory
    remember: Any = (
        import_object(memory, "a memory function")
        if isinstance(memory, str)
        else memory
    )
    template = load_template(prompt_template, benchmark)
    is_chat = values.get("prompt_style") == "chat"
    settings = Settings(
        template=template,
        turn_template=turn_template(template) if is_chat else None,
        memory=remember,
        prompt_template=prompt_template,
        **values,
    )
    for name, least in (
        ("history_length", 0),
        ("history_depth", 0),
        ("max_steps", 1),
    ):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(
                f"{name}: expected an integer of at least {least}, received {value!r}"
            )
    check_known("action_format", settings.action_format, ACTION_FORMATS)
    check_known("prompt_style", settings.prompt_style, PROMPT_STYLES)
    if not isinstance(settings.system_prompt, str):
        raise InputError(
            f"system_prompt: expected a text, received {settings.system_prompt!r}"
        )
    if not (remember is None or callable(remember)):
        raise InputError(
            f"memory: expected a function of the past pairs and the state, received {remember!r}"
        )
    return settings


class Episode:
    """One episode of a task. Call `start` before use.

    If the engine runs elsewhere (in a subprocess), `start` and `act` are replaced by their parts: `begin` with the
    engine's first state, then `read` for each text and `observe` with the state after its command.

    Args:
        shared: The task source.
        settings: Prompts, parsing and limits.
        engine: The engine. None creates one from the source.

    Attributes:
        started: Whether a task was started.
        task: The current task.
        state: The engine's last state.
        action: The last command. Empty at the start.
        action_valid: With ``action_format="response"``, whether the response had the expected form (verl-agent's flag,
            which the invalid-action penalty uses). Otherwise whether the command was admissible. True at the start.
        terminated: Whether the task has ended.
        truncated: Whether the step limit, or one of the benchmark's own, was reached first.
        done: Whether the episode was terminated or truncated.
        steps_taken: The number of actions so far.
    """

    task: Task
    state: State
    action = ""
    action_valid = True
    steps_taken = 0
    started = False
    terminated = False
    truncated = False
    done = False

    def __init__(
        self, shared: SharedSource, settings: Settings, engine: Engine | None = None
    ) -> None:
        self.shared = shared
        self.settings = settings
        shared.add_user(self)
        self._engine = engine
        # A memory summarises all pairs.
        self._pairs: deque[Pair] = deque(
            maxlen=settings.history_length if settings.memory is None else None
        )
        self._journal: list[_Played] = []

    @property
    def engine(self) -> Engine:
        """The engine, created on first access."""
        if self._engine is None:
            self._engine = self.shared.source.engine()
        return self._engine

    @property
    def key_hash(self) -> int | None:
        """The hash of what is compared instead of the state's text when steps are grouped; None if it is the text."""
        key = self.state.key
        function = self.settings.state_key
        if key is None:
            if function is None:
                return None
            key = answer_of("state key", function, self.state.text, str)
        return text_hash(key)

    @property
    def state_hash(self) -> int:
        """The hash of the state's key, or of its text (`hgpo_envs.hashing`)."""
        of_key = self.key_hash
        return text_hash(self.state.text) if of_key is None else of_key

    def start(self, task_id: str) -> None:
        """Start a task. Raises KeyError (`hgpo_envs.errors.UnknownTask`) if the source does not have it."""
        self.begin(self.shared.source.task(task_id), self.engine.start(task_id))

    def begin(self, task: Task, state: State) -> None:
        """Start a task from its first state."""
        self.task = task
        self.state = state
        self._pairs.clear()
        self._journal.clear()
        self.steps_taken = 0
        self.action = ""
        self.action_valid = True
        self.started = True
        self.terminated = state.terminated
        self.truncated = state.truncated
        self.done = state.terminated or state.truncated

    def act(self, text: str) -> None:
        """Execute a command or a response, depending on the action format. No text raises an error."""
        command, well_formed = self.read(text)
        self.observe(command, well_formed, self.engine.act(command))

    def read(
        self,
        text: str,
        message: Mapping[str, Any] | None = None,
        *,
        cut_off: bool = False,
    ) -> tuple[str, bool | None]:
        """Parse a text by the action format.

        Lone surrogates are replaced (`hgpo_envs.unicode_text.clean_text`), and the command is truncated to
        `LONGEST_COMMAND` characters where there are no tools.

        Args:
            text: A command or a response.
            message: The message of a server from which the action is read instead (`hgpo_envs.responses.action_text`).
            cut_off: Whether the message ends at the token limit.

        Returns:
            The command, and whether the text has the form of a response (None for other action formats).
        """
        settings = self.settings
        longest = None if settings.tools else LONGEST_COMMAND
        if message is not None:
            thought = settings.action_format == "response"
            text = action_text(
                message, tools=bool(settings.tools), thought=thought, cut_off=cut_off
            )
        text = clean_text(text)
        if settings.action_format == "response":
            response = answer_of(
                "parse_response", settings.parse_response, text, Response
            )
            # JSON can escape a lone surrogate
            command = clean_text(response.action[:longest])
            return admissible(command, self.state.actions), response.valid
        text = text[:longest]
        return (
            numbered(text, self.state.actions)
            if settings.action_format == "number"
            else text
        ), None

    def observe(self, command: str, well_formed: bool | None, state: State) -> None:
        """Record an executed command and the state after it."""
        self._journal.append((command, well_formed))
        self.steps_taken += 1
        self._pairs.append(Pair(self.steps_taken, self.state.text, command))
        self.state = state
        self.action = command
        self.action_valid = (
            state.valid is not False if well_formed is None else well_formed
        )
        self.terminated = state.terminated
        self.done = (
            state.terminated
            or state.truncated
            or self.steps_taken >= self.settings.max_steps
        )
        self.truncated = self.done and not state.terminated

    def prompt(self, history_length: int | None = None) -> str:
        """Return the prompt for the current state; in a conversation, the next message to the policy.

        Args:
            history_length: The maximum number of past pairs, to shorten a prompt. None uses all of `history`.
        """
        state = self.state
        settings = self.settings
        template = settings.template
        pairs = list(self._pairs)
        if history_length is not None:
            pairs = pairs[max(0, len(pairs) - history_length) :]
        past: str | None = None
        if settings.memory is not None and self.steps_taken:
            past = answer_of("memory", partial(settings.memory, pairs), state, str)
            pairs = []  # the memory's text stands for them
        if settings.prompt_style == "chat":
            pairs = []  # the conversation contains them
            if self.steps_taken and settings.turn_template is not None:
                template = settings.turn_template
        return template.render(
            task=self.task.instruction,
            observation=state.text,
            admissible_actions=state.actions,
            pairs=pairs,
            steps_taken=self.steps_taken,
            past=past,
            max_steps=settings.max_steps,
            action_format=settings.action_format,
            info=state.info,
            prompt_style=settings.prompt_style,
        )

    def history(self) -> list[Pair]:
        """Return the past pairs that the prompt shows, oldest first: the last K, or all that a memory summarises."""
        return list(self._pairs)

    def info(self) -> dict[str, Any]:
        """Return Gymnasium's info, a new dictionary. The values of the benchmark's own fields must not be changed."""
        task = self.task
        state = self.state
        return {
            **state.info,
            "task": task.instruction,
            "task_id": task.id,
            "task_type": task.task_type,
            "split": task.split,
            "versions": dict(task.versions),
            "step": self.steps_taken,
            "action": self.action,
            "action_valid": self.action_valid,
            "action_admissible": state.valid,
            "admissible_actions": list(state.actions),
            "won": state.won,
            "score": state.score,
        }

    def close(self) -> None:
        """End what the engine has outside this process, also during a call; `start` may be called again.

        The last one of a task source closes it, too (`hgpo_envs.sources.SharedSource`).
        """
        if (close := getattr(self._engine, "close", None)) is not None:
            close()
        self.shared.close(self)

    def fork(self) -> Episode:
        """Return an independent episode in the same state.

        If the engine has no `fork` (`hgpo_envs.engine.BranchingEngine`), the commands so far are replayed in a new
        engine.

        Raises:
            InputError: If the replay ends in another state: the environment is not deterministic.
        """
        fork = getattr(self._engine, "fork", None)
        if not self.started or fork is None:
            other = _replayed(*self._recipe())
            if self.started and other.state != self.state:
                raise InputError(
                    f"{self.shared.source.name}: replaying task {self.task.id} ended in another state after "
                    f"{len(self._journal)} commands; expected a deterministic environment, or an engine with `fork`"
                )
            return other
        other = object.__new__(type(self))
        other._engine = fork()
        other.resume(self)
        self.shared.add_user(other)
        return other

    def resume(self, other: Episode) -> None:
        """Continue in the state of another episode with the same task source and settings, with this one's engine."""
        engine = self._engine
        self.__dict__.update(other.__dict__)
        self._engine = engine
        self._pairs = other._pairs.copy()
        self._journal = other._journal.copy()

    def engine_key(self) -> Hashable:
        """Return the engine's key: equal keys of one task mean equal reactions to all later commands.

        If the engine has no `key` (`hgpo_envs.engine.BranchingEngine`), this is the list of commands so far, so that
        no two different states have the same key.
        """
        key = getattr(self._engine, "key", None)
        return (
            key()
            if key is not None
            else tuple([command for command, _ in self._journal])
        )

    def key(self) -> Hashable:
        """Return a value that identifies the episode's state: task, hidden state, visible history and step number.

        Two episodes with equal settings and equal keys have the same prompt, and react equally to all later texts.
        """
        return (
            self.task.id,
            self.steps_taken,
            tuple(self._pairs),
            self.state.text,
            self.engine_key(),
        )

    def _recipe(self) -> tuple[SharedSource, Settings, str | None, list[_Played]]:
        return (
            self.shared,
            self.settings,
            self.task.id if self.started else None,
            self._journal,
        )

    def __reduce__(self) -> tuple[Callable[..., Episode], tuple[Any, ...]]:
        return _replayed, self._recipe()


_Played = tuple[str, bool | None]
"""An executed command, and whether its response was well formed."""


def _replayed(
    shared: SharedSource,
    settings: Settings,
    task_id: str | None,
    journal: list[_Played],
) -> Episode:
    """Return an episode in which some commands were played, in a new engine."""
    episode = Episode(shared, settings)
    if task_id is not None:
        episode.start(task_id)
        for command, well_formed in journal:
            episode.observe(command, well_formed, episode.engine.act(command))
    return episode


def check_template(shared: SharedSource, settings: Settings, task_id: str) -> None:
    """Check the texts for a policy by rendering a user's prompt template for a task, without and with a past pair.

    A template that passes may still fail at a later state; then that rollout fails. If the task cannot be started, no
    error is raised, because the template was not tested. The template and the system prompt cause a warning if they
    are written for another wording of the benchmark than that of the task (`hgpo_envs.task_wordings`).

    Raises:
        InputError: If the template fails.
    """
    if settings.template.trusted and not settings.system_prompt:
        return
    episode = Episode(shared, settings)
    try:
        episode.start(task_id)
    except (Exception, SystemExit):  # noqa: BLE001 - any error of the environment
        return
    first = episode.prompt()
    # as if the action changed nothing
    episode.observe(next(iter(episode.state.actions), ""), None, episode.state)
    texts = {
        f"prompt template {settings.template.name}": f"{first}\n{episode.prompt()}",
        "the system prompt": settings.system_prompt,
    }
    warn_of_other_wordings(shared.source.name, episode.task.versions, texts)
