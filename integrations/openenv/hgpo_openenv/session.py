"""One client's session: an environment of its own, and a reply to each of its messages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hgpo_openenv.messages import GetState, MessageError, Reset, write_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.env import TextEnv
    from hgpo_openenv.environments import ServedEnvironment
    from hgpo_openenv.messages import ResetData, Step


class Session:
    """A session.

    Args:
        served: The environment.
        report: Called with each error of the environment, for the server's log. The client is told only that there
            was one, because such errors can contain paths and data of the server.
    """

    def __init__(
        self, served: ServedEnvironment, report: Callable[[BaseException], None]
    ) -> None:
        self._served = served
        self._report = report
        self._env: TextEnv = served.new_env()
        self._episode_id: str | None = None
        self._started = self._done = False
        self._steps = 0

    def reply(self, message: Reset | Step | GetState) -> bytes:
        """Carry out a message and return the reply.

        Raises:
            MessageError: It cannot be carried out.
        """
        if isinstance(message, GetState):
            return write_message("state", self._state())
        if isinstance(message, Reset):
            return self._reset(message.data)
        return self._step(message.data.action)

    def close(self) -> None:
        """End what the engine has outside this process, also during a call."""
        self._env.close()

    def _reset(self, asked: ResetData) -> bytes:
        task = None if asked.task is None else str(asked.task)
        if task is not None and not self._served.has_task(task):
            raise MessageError("VALIDATION_ERROR", self._served.unknown_task(task))
        self._started = False

        def reset() -> bytes:
            options = None if task is None else {"task": task}
            observation, info = self._env.reset(seed=asked.seed, options=options)
            return self._observation(
                observation, None, terminated=False, truncated=False, info=info
            )

        reply = self._guarded(reset)
        self._episode_id = asked.episode_id
        self._started = True
        self._steps = 0
        self._done = self._env.episode.done
        return reply

    def _step(self, action: str) -> bytes:
        if not self._started or self._done:
            state = (
                "the episode has ended" if self._started else "no episode was started"
            )
            raise MessageError("RESET_NEEDED", f"{state}; send a reset first")

        def step() -> bytes:
            observation, reward, terminated, truncated, info = self._env.step(action)
            return self._observation(
                observation,
                reward,
                terminated=terminated,
                truncated=truncated,
                info=info,
            )

        reply = self._guarded(step)
        self._done = self._env.episode.done
        self._steps += 1
        return reply

    def _guarded(self, call: Callable[[], bytes]) -> bytes:
        """Call the environment. After an error, the session needs a reset."""
        try:
            return call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of the environment
            self._started = False
            self._report(error)
            text = f"{self._served.env_id} failed; the server's log has the reason. Send a reset to start again"
            raise MessageError("EXECUTION_ERROR", text) from None

    def _observation(
        self,
        observation: dict[str, Any],
        reward: float | None,
        *,
        terminated: bool,
        truncated: bool,
        info: dict[str, Any],
    ) -> bytes:
        for name, number in (("reward", reward), ("score", info.get("score"))):
            if isinstance(number, float) and not math.isfinite(number):
                # JSON has no other
                raise ValueError(f"{name}: expected a finite number, received {number}")
        shown = {
            **observation,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }
        document = {
            "observation": shown,
            "reward": reward,
            "done": terminated or truncated,
        }
        return write_message("observation", document)

    def _state(self) -> dict[str, Any]:
        episode = self._env.episode
        settings = self._env.episode.settings
        return {
            "episode_id": self._episode_id,
            "step_count": self._steps if self._started else 0,
            "environment": self._served.env_id,
            "task_id": episode.task.id if self._started else None,
            "done": self._started and self._done,
            "won": self._started and episode.state.won,
            "score": episode.state.score if self._started else 0.0,
            "history_depth": settings.history_depth,
            "max_steps": settings.max_steps,
            "action_format": settings.action_format,
            "prompt_style": settings.prompt_style,
            "system_prompt": settings.system_prompt,
        }
