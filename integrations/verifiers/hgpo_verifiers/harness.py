"""Plays an episode: each step is a request with its own prompt, and so a branch of the trace's message graph."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import verifiers.v1 as vf
from openai import APIStatusError, AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult

from hgpo_envs.engine import State
from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError
from hgpo_envs.responses import finish_reason, message_text
from hgpo_train.policies.base import Failure, Reply
from hgpo_train.policies.conversation import chat_messages
from hgpo_train.policies.validation import checked
from hgpo_train.rollout.plan import PlannedGroup
from hgpo_train.rollout.trajectory import Trajectory
from hgpo_verifiers.taskset import STEPS, StepData, opened

if TYPE_CHECKING:
    from collections.abc import Callable

_IN_THE_GRAPH: Final = {
    "prompt",
    "response",
    "message",
    "finish_reason",
    "policy_version",
    "aborted",
    "error",
}
_OF_THE_IMPORT: Final = {"iteration", "task_id", "group", "trajectory", "step"}


class StepHarness(vf.Harness[vf.HarnessConfig]):
    """Plays the tasks of `StepTaskset` in this process.

    Each step sends HGPO's prompt with the last K steps, instead of a growing conversation; with
    ``prompt_style="chat"`` it sends the conversation, as `hgpo rollout` does. ``trace.info["hgpo_steps"]`` has what the
    environment knows of each step: state, action, reward, validity, and more columns of the step table.
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        """Play an episode with the model behind an endpoint."""
        del runtime, mcp_urls
        if not isinstance(data, StepData) or data.id is None:
            raise InputError(
                f"expected a task of hgpo-verifiers, received one of {type(data).__name__}"
            )
        handle = opened(data.environment, data.split, data.options)
        in_threads = getattr(handle.shared.source, "concurrent", None) is not None

        async def call(function: Callable[[str], Any], text: str) -> Any:  # noqa: ANN401 - a state
            return (
                await asyncio.to_thread(function, text)
                if in_threads
                else function(text)
            )

        episode = Episode(handle.shared, handle.settings)
        trajectory = Trajectory(
            PlannedGroup(0, 0, data.id, 0, 1), 0, 0, episode, clocked=False
        )
        steps = trace.info[STEPS] = []
        try:
            async with AsyncOpenAI(
                base_url=endpoint, api_key=secret, timeout=None
            ) as client:
                await call(episode.start, data.id)
                while not episode.done:
                    asked = trajectory.request()
                    messages: Any = chat_messages(
                        data.system_prompt or "", asked.turns, asked.prompt, asked.tools
                    )
                    tools: Any = {"tools": list(asked.tools)} if asked.tools else {}
                    answer = await client.chat.completions.create(
                        model=ctx.model, messages=messages, **tools
                    )
                    command = trajectory.add_reply(_reply(answer.choices[0]), 0.0, 0)
                    state = checked(State, await call(episode.engine.act, command))
                    if isinstance(state, Failure):
                        raise vf.HarnessError(str(state))
                    trajectory.add_state(state, 0.0)
                    row = trajectory.rows[-1].as_dict()
                    steps.append(
                        {
                            name: row[name]
                            for name in row.keys() - _IN_THE_GRAPH - _OF_THE_IMPORT
                        }
                    )
        except APIStatusError as error:
            # The trace has the reason already: a limit, or a failure of the model's server.
            return ProgramResult(1, "", str(error))
        finally:
            episode.close()
        return ProgramResult(0, "", "")


def _reply(choice: Any) -> Reply:  # noqa: ANN401 - openai's Choice
    message = choice.message.model_dump(exclude_none=True)
    return Reply(
        response=message_text(message),
        message=message,
        finish_reason=finish_reason(choice.finish_reason),
    )
