"""An episode of an environment, played with an engine that maps tokens to tokens. Nothing here knows verl or torch.

The rows are those of the collector (`hgpo_train.rollout.trajectory`): the same columns, the same hashes, and the same
record of failures.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final

from hgpo_envs.engine import State
from hgpo_train.models.chat_format import end_tokens
from hgpo_train.policies.base import Failure, Reply, attempt
from hgpo_train.policies.generation import fit_prompts
from hgpo_train.policies.validation import checked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hgpo_train.models.hf import Tokenizer
    from hgpo_train.policies.generation import GenerationOptions
    from hgpo_train.rollout.trajectory import Trajectory

ATTEMPTS: Final = 3
"""How often a request is sent before its rollout fails."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The tokens of a response.

    Attributes:
        tokens: Token ids, at least one.
        logprobs: Log-probability of each token, in nats; None if the engine reports none.
        version: Number of weight updates that the engine had received; None if it does not say.
    """

    tokens: list[int]
    logprobs: list[float] | None
    version: int | None


if TYPE_CHECKING:
    Generate = Callable[[list[int]], Awaitable[Generated | Failure]]


def with_retries(
    generate: Callable[[list[int]], Awaitable[Generated]],
    *,
    pause_s: float = 1.0,
    timeout_s: float = 3600.0,
) -> Generate:
    """Return a function that sends a request up to `ATTEMPTS` times, and returns a failure instead of raising.

    Args:
        generate: Sends a request; any exception counts as a failed attempt.
        pause_s: Seconds before the second attempt; twice as many before each further one.
        timeout_s: Seconds after which an attempt fails.
    """

    async def retried(tokens: list[int]) -> Generated | Failure:
        failure = Failure("PolicyFailed", "no attempt was made")
        for number in range(ATTEMPTS):
            if number:
                await asyncio.sleep(pause_s * 2 ** (number - 1))
            try:
                return await asyncio.wait_for(generate(tokens), timeout_s)
            except TimeoutError:
                failure = Failure(
                    "PolicyTimedOut",
                    f"no answer within {timeout_s:g} s, {number + 1} attempts",
                )
            except Exception as error:  # noqa: BLE001 - of the engine or of Ray; the rollout records it
                failure = Failure(
                    "PolicyFailed",
                    f"{type(error).__name__}: {error} ({number + 1} attempts)",
                    error,
                )
        return failure

    return retried


async def play(
    trajectory: Trajectory,
    generate: Generate,
    tokenizer: Tokenizer,
    options: GenerationOptions,
) -> None:
    """Play a rollout to its end. A failure of the engine or the environment aborts it, and its rows are kept.

    Args:
        trajectory: The rollout, which has not begun. Its rows are added to it.
        generate: Returns the response's tokens for a prompt's tokens.
        tokenizer: The model's tokenizer, with a chat template.
        options: Options of tokenization: the token budget, and what happens to longer prompts.
    """
    failure = attempt(
        "EnvironmentFailed", trajectory.episode.start, trajectory.group.task_id
    )
    if failure is None and trajectory.episode.done:
        failure = Failure("EnvironmentFailed", "the task ended before its first step")
    while failure is None and not trajectory.episode.done:
        failure = await _step(trajectory, generate, tokenizer, options)
    if failure is not None:
        trajectory.abort(failure)


async def _step(
    trajectory: Trajectory,
    generate: Generate,
    tokenizer: Tokenizer,
    options: GenerationOptions,
) -> Failure | None:
    fitted = attempt(
        "EnvironmentFailed",
        lambda: fit_prompts(tokenizer, [trajectory.request()], options)[0],
    )
    if isinstance(fitted, Failure):
        return fitted
    began = perf_counter()
    generated = await generate(fitted.tokens)
    if isinstance(generated, Failure):
        return generated
    ends = end_tokens(tokenizer)
    reply = fitted.reply(tokenizer, options, ends, generated.tokens, generated.logprobs)
    return attempt(
        "EnvironmentFailed",
        _act,
        trajectory,
        reply,
        perf_counter() - began,
        generated.version or 0,
    )


def _act(
    trajectory: Trajectory, reply: Reply, seconds: float, version: int
) -> Failure | None:
    command = trajectory.add_reply(reply, seconds, version)
    began = perf_counter()
    state: State | Failure = checked(State, trajectory.episode.engine.act(command))
    if isinstance(state, Failure):
        return state
    trajectory.add_state(state, perf_counter() - began)
    return None
