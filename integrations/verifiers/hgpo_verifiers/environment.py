"""An environment of verifiers whose rollouts are episodes, with a fresh prompt, a reward and an advantage per step."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any

import verifiers as vf
from verifiers.utils.message_utils import normalize_messages

from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.responses import message_text
from hgpo_envs.task_sampling import task_stream
from hgpo_train.policies.base import Failure, Reply, Request
from hgpo_train.policies.conversation import chat_messages
from hgpo_train.policies.validation import checked_state
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.plan import PlannedGroup
from hgpo_train.rollout.trajectory import Trajectory
from hgpo_verifiers.step_advantages import StepRubric
from hgpo_verifiers.step_table import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_train.rollout.env_handle import EnvHandle


class EnvironmentFailed(vf.InfraError):
    """The environment raised an error; the rollout ends with it."""


class StepEnv(vf.MultiTurnEnv):
    """Episodes of a text environment.

    Each step sends one fresh user message, the prompt of HGPO's template with the last K steps, instead of a growing
    conversation; with ``prompt_style="chat"`` it sends the conversation, as `hgpo rollout` does. Messages before the
    data set's prompt (a system prompt, examples) stay before it. The environment's tools are sent as verifiers' tools.
    ``state["trajectory"]`` has one entry per step with `reward`, `advantage` and, in `extras`, `state_hash`, `action`
    and `action_valid`; ``state["hgpo_steps"]`` has the rows of the step table.

    Args:
        handle: The environment.
        tasks: Number of tasks in the data set; -1 for all of the split.
        order: Their order, one of `hgpo_envs.task_sampling.TASK_SAMPLINGS` that ends.
        seed: Seed of the order.
        estimator: The estimator of the advantages, computed within the group of a task.
        parameters: Its parameters.
        options: Other arguments of `verifiers.Environment`, such as `system_prompt`, by default the environment's own.
    """

    def __init__(
        self,
        handle: EnvHandle,
        *,
        tasks: int = -1,
        order: str = "shuffled",
        seed: int = 0,
        estimator: str = "hgpo",
        parameters: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._handle = handle
        self._playing = dict[str, Trajectory]()
        self._asked = dict[str, Request]()  # what each trajectory asks its policy now
        self._in_threads = getattr(handle.shared.source, "concurrent", None) is not None
        rubric = StepRubric(estimator, parameters or {})
        own = {"system_prompt": handle.settings.system_prompt or None, "tool_defs": _tools(handle.settings.tools)}
        super().__init__(dataset=self._dataset(tasks, order, seed), rubric=rubric, **{**own, **options})

    async def setup_state(self, state: Any) -> None:  # noqa: ANN401 - verifiers' State
        """Start the task of a rollout."""
        task_id = state["info"]["task_id"]
        group = PlannedGroup(state.get("example_id", 0), 0, task_id, 0, 1)
        episode = Episode(self._handle.shared, self._handle.settings)
        trajectory = Trajectory(group, 0, 0, episode, clocked=False)
        self._playing[state["trajectory_id"]] = trajectory
        state[STEPS] = []
        await self._call(episode.start, task_id)
        self._asked[state["trajectory_id"]] = trajectory.request()

    async def get_prompt_messages(self, state: Any) -> Any:  # noqa: ANN401 - verifiers' Messages
        """Return the messages of a step: what the data set has before its prompt, and the request to the policy."""
        asked = self._asked[state["trajectory_id"]]
        conversation = chat_messages("", asked.turns, asked.prompt, asked.tools)
        return [*state["prompt"][:-1], *normalize_messages(conversation)]

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:  # noqa: ANN401
        """Return nothing: `get_prompt_messages` shows the next state."""
        del messages, state
        return []

    async def add_trajectory_step(self, state: Any, trajectory_step: Any) -> None:  # noqa: ANN401
        """Execute the model's response, and add the step with its reward."""
        trajectory = self._playing[state["trajectory_id"]]
        episode = trajectory.episode
        message = _message(trajectory_step["completion"])
        tokens = trajectory_step["tokens"] or {}
        reply = Reply(
            response=message_text(message),
            message=message,
            prompt_token_ids=tokens.get("prompt_ids"),
            response_token_ids=tokens.get("completion_ids"),
            response_logprobs=tokens.get("completion_logprobs"),
            finish_reason="length" if trajectory_step["is_truncated"] else "stop",
        )
        before = episode.state_hash
        command = trajectory.add_reply(reply, 0.0, 0)
        after = checked_state(await self._call(episode.engine.act, command))
        if isinstance(after, Failure):
            raise EnvironmentFailed(str(after))
        trajectory.add_state(after, 0.0)
        state[STEPS].append(trajectory.rows[-1].as_dict())
        trajectory_step["reward"] = episode.state.reward
        extras = {"state_hash": before, "action": command, "action_valid": episode.action_valid}
        trajectory_step["extras"] = {**trajectory_step["extras"], **extras}
        state["trajectory"].append(trajectory_step)
        if not episode.done:
            self._asked[state["trajectory_id"]] = trajectory.request()

    @vf.stop
    async def episode_ended(self, state: Any) -> bool:  # noqa: ANN401
        """Return whether the task has ended or the step limit was reached."""
        return bool(state["trajectory"]) and self._playing[state["trajectory_id"]].episode.done

    @vf.cleanup
    async def close_episode(self, state: Any) -> None:  # noqa: ANN401
        """Mark a rollout that did not end as aborted, and end its episode."""
        trajectory = self._playing.pop(state["trajectory_id"])
        self._asked.pop(state["trajectory_id"], None)
        episode = trajectory.episode
        if not (episode.started and episode.done):
            error = state.get("error")
            kind = "EnvironmentFailed" if isinstance(error, EnvironmentFailed) else "PolicyFailed"
            reason = f"{type(error).__name__}: {one_line(error, 300)}" if error else f"{state.get('stop_condition')}"
            trajectory.abort(Failure(kind, reason))
            state[STEPS] = [row.as_dict() for row in trajectory.rows]
        episode.close()

    async def _call(self, call: Callable[[str], Any], text: str) -> Any:  # noqa: ANN401
        """Call the environment; an error ends the rollout, not the evaluation."""
        try:
            return await asyncio.to_thread(call, text) if self._in_threads else call(text)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(f"{type(error).__name__}: {one_line(error, 300)}") from error

    def _dataset(self, tasks: int, order: str, seed: int) -> Any:  # noqa: ANN401 - a datasets.Dataset
        """Return the tasks, each with its first prompt."""
        import datasets

        assert hasattr(datasets, "Dataset")  # Hugging Face's, which is not installed where types are checked
        ids = self._handle.tasks
        if tasks != -1 and tasks < 1:
            raise InputError(f"tasks: expected at least 1, or -1 for all, received {tasks}")
        chosen = list(islice(task_stream(order, ids, seed), len(ids) if tasks == -1 else tasks))
        episode = Episode(self._handle.shared, self._handle.settings)
        prompts = {}
        for task_id in dict.fromkeys(chosen):
            episode.start(task_id)
            prompts[task_id] = episode.prompt()
        episode.close()
        return datasets.Dataset.from_list(
            [
                {"prompt": [{"role": "user", "content": prompts[task_id]}], "info": {"task_id": task_id}, "answer": ""}
                for task_id in chosen
            ]
        )


def load_environment(
    environment: str = "HGPO/ALFWorld-v0",
    *,
    split: str = "train",
    tasks: int = -1,
    order: str = "shuffled",
    seed: int = 0,
    estimator: str = "hgpo",
    parameters: Mapping[str, Any] | None = None,
    system_prompt: str | None = None,
    **env_options: Any,
) -> StepEnv:
    """Return an environment of verifiers.

    Args:
        environment: A Gymnasium id, or ``module:EnvironmentSpec``.
        split: The split of the tasks.
        tasks: Number of tasks in the data set; -1 for all.
        order: Their order: ``shuffled``, ``sweep``, ``random`` or ``verl-agent``.
        seed: Seed of the order.
        estimator: The estimator of the advantages, computed within the group of a task: those that compare rollouts
            of one task, such as ``hgpo``, ``gigpo`` or ``grpo``.
        parameters: Its parameters.
        system_prompt: A message before each prompt.
        env_options: Keyword arguments of the environment, such as `history_length`; `action_format` is ``response``
            by default.

    Raises:
        InputError: An id, an option or a parameter is unknown.
    """
    handle = open_env(environment, split=split, **{"action_format": "response", **env_options})
    return StepEnv(
        handle,
        tasks=tasks,
        order=order,
        seed=seed,
        estimator=estimator,
        parameters=parameters,
        system_prompt=system_prompt,
    )


def _message(completion: Any) -> dict[str, Any]:  # noqa: ANN401 - verifiers' Messages
    """Return what the model wrote in OpenAI's form: reasoning and tool calls that the server has separated too."""
    message = completion[-1].model_dump()
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in completion[-1].tool_calls or ()
    ]
    return {**message, "tool_calls": calls} if calls else message


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tools of OpenAI's form in that of verifiers."""
    empty = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return [{**empty, **tool["function"]} for tool in tools]
