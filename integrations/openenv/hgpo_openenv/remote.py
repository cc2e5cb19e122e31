"""An environment of `hgpo serve` as a Gymnasium environment, for trainers in other processes or on other machines."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn
from urllib.parse import urlsplit

import gymnasium
import numpy as np
import orjson

from hgpo_envs.env import check_options, checked_action, observation_space
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.spaces import STATE_CHARACTERS, UnicodeText
from hgpo_envs.unicode_text import clean_text
from hgpo_train.policies.http_client import LOCAL_HOSTS

if TYPE_CHECKING:
    from gymnasium import spaces
    from websockets.sync.client import ClientConnection

MOST_BYTES: Final = 1 << 26
"""The largest message that is read."""


class RemoteError(ConnectionError):
    """The connection to a server, or the environment there, failed."""


class RemoteEnv(gymnasium.Env[dict[str, Any], str]):
    """One session of `hgpo serve`. Its observations, rewards and infos are those of the environment in this process.

    The session ends with `close`, and when the connection does; another client cannot reach it, so a `RemoteEnv` cannot
    be copied or pickled. Split, prompts, action format and step limit are those of the server. Environments of the same
    server are independent, so a group of rollouts is one `RemoteEnv` per rollout, reset to the same task.

    Args:
        url: The address that `hgpo serve` printed, such as ``http://127.0.0.1:8000/TOKEN/ALFWorld``.
        token: The token, if the address does not contain it. None uses the environment variable ``HGPO_SERVE_TOKEN``.
        timeout: The longest wait for the server, in seconds.

    Raises:
        InputError: The address or the token is wrong.
        RemoteError: The server cannot be reached.

    Examples:
        >>> env = RemoteEnv("http://127.0.0.1:8000/TOKEN/ALFWorld")  # doctest: +SKIP
        >>> observation, info = env.reset(seed=1)  # doctest: +SKIP
        >>> observation, reward, terminated, truncated, info = env.step("look")  # doctest: +SKIP
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]  # a class constant

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 300.0
    ) -> None:
        self._timeout = timeout
        self._session = ExitStack()
        self._closed = False
        self._connection = _connect(
            self._session, url, token or os.environ.get("HGPO_SERVE_TOKEN"), timeout
        )
        self.remote = self._ask({"type": "state"}, "state")
        """What the server said about the session: ``environment``, ``action_format``, ``system_prompt`` and more."""

    @cached_property
    def observation_space(self) -> spaces.Dict:  # type: ignore[override]
        """The space of observations."""
        return observation_space(self.remote["history_depth"])

    @cached_property
    def action_space(self) -> UnicodeText:  # type: ignore[override]
        """The space of actions: all text."""
        return UnicodeText(STATE_CHARACTERS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a task, as `hgpo_envs.env.TextEnv.reset`.

        Raises:
            InputError: The task or an option is unknown.
            RemoteError: The connection or the environment failed.
        """
        super().reset(seed=seed)
        task = check_options(options, ("task",)).get("task")
        asked = {
            "seed": seed,
            "task": int(task) if isinstance(task, np.integer) else task,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        observation, info, *_ = _parts(
            self._ask({"type": "reset", "data": given}, "observation")
        )
        return observation, info

    def step(
        self, action: str
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Execute an action, as `hgpo_envs.env.TextEnv.step`.

        Raises:
            InputError: If the action is not text.
            gymnasium.error.ResetNeeded: The episode has ended or `reset` was never called.
            RemoteError: The connection or the environment failed, or the environment was closed.
        """
        text = clean_text(checked_action(action))
        answer = self._ask({"type": "step", "data": {"action": text}}, "observation")
        observation, info, terminated, truncated = _parts(answer)
        return observation, answer["reward"], terminated, truncated, info

    def close(self) -> None:
        """End the session."""
        self._closed = True
        self._session.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a RemoteEnv is one session of a server: open another one instead of a copy"
        )

    def _ask(self, message: dict[str, Any], kind: str) -> Any:  # noqa: ANN401 - JSON
        """Send a message and return the data of its answer."""
        from websockets.exceptions import ConnectionClosed

        if self._closed:
            raise RemoteError("the environment was closed; open another RemoteEnv")
        try:
            self._connection.send(orjson.dumps(message), text=True)
            answer = orjson.loads(
                self._connection.recv(timeout=self._timeout, decode=False)
            )
        except ConnectionClosed as error:
            reason = error.rcvd.reason if error.rcvd is not None else ""
            raise RemoteError(
                f"the server closed the session: {one_line(reason, 200) or 'without a reason'}"
            ) from None
        except TimeoutError:
            self.close()
            raise RemoteError(
                f"the server did not answer within {self._timeout:g} s"
            ) from None
        except orjson.JSONDecodeError as error:
            raise RemoteError(
                f"expected JSON of `hgpo serve`, received something else ({error})"
            ) from None
        if answer.get("type") == "error":
            raise _error(**answer["data"])
        if answer.get("type") != kind:
            raise RemoteError(
                f"expected {kind!r} of the server, received {answer.get('type')!r:.100}"
            )
        return answer["data"]


def _connect(
    session: ExitStack, url: str, token: str | None, timeout: float
) -> ClientConnection:
    """Open a connection, which lasts until the session is closed."""
    from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException
    from websockets.sync.client import connect

    scheme, separator, rest = url.rstrip("/").partition("://")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    try:
        return session.enter_context(
            connect(
                f"{schemes[scheme]}://{rest}/ws" if separator else url,
                additional_headers={"Authorization": f"Bearer {token}"}
                if token
                else {},
                compression=None,
                open_timeout=timeout,
                # A proxy of the environment, on another machine, cannot reach this one.
                proxy=None if urlsplit(url).hostname in LOCAL_HOSTS else True,
                max_size=MOST_BYTES,
            )
        )
    except (InvalidURI, KeyError, ValueError):
        example = "http://127.0.0.1:8000/TOKEN/ALFWorld"
        raise InputError(
            f"url: expected an address of `hgpo serve` such as {example}"
        ) from None
    except InvalidStatus as error:
        reason = one_line((error.response.body or b"").decode("utf-8", "replace"), 300)
        raise InputError(
            f"url: the server refused the connection ({error.response.status_code}): {reason}"
        ) from None
    except (OSError, WebSocketException) as error:
        raise RemoteError(
            f"cannot connect to the server: {type(error).__name__}: {one_line(error, 200)}"
        ) from None


def _parts(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bool, bool]:
    """Return observation, info, terminated and truncated of an answer."""
    shown = answer["observation"]
    observation = {
        "state": shown["state"],
        "prompt": shown["prompt"],
        "history_hash": np.array(shown["history_hash"], np.int64),
    }
    return observation, shown["info"], shown["terminated"], shown["truncated"]


def _error(message: str, code: str) -> Exception:
    if code == "RESET_NEEDED":
        return gymnasium.error.ResetNeeded(message)
    return InputError(message) if code == "VALIDATION_ERROR" else RemoteError(message)
