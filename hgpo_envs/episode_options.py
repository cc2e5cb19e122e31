"""The options of an episode that a user chooses: the one place of their names, types, defaults and meanings.

`hgpo_envs.episode.Settings`, the training configuration and the commands derive from it. Help reads this file without
importing the package, which takes half a second (`hgpo_train.cli.options`); so its defaults are literals.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from msgspec import Meta


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions:
    """The options of an episode, which are arguments of `hgpo_envs.env.TextEnv`, too."""

    history_length: Annotated[int, Meta(ge=0)] = 2
    """K, the number of past steps in the prompt."""
    history_depth: Annotated[int, Meta(ge=0)] = 8
    """Number of past states in the stored history hashes."""
    action_format: Literal["command", "response", "number"] = "command"
    """Form of the policy's output: a bare command, a response with the action in tags, or the number of an admissible
    action."""
    max_steps: Annotated[int, Meta(ge=1)] = 50
    """Steps after which an episode is truncated."""
    prompt_template: str | None = None
    """A Jinja file that replaces the environment's prompt, the name of a bundled template, such as compact, or
    verl-agent:PATH for the prompts of a checkout of verl-agent."""
    prompt_style: Literal["memory", "chat"] = "memory"
    """memory: each prompt shows the last history_length steps, as in the papers. chat: a conversation that grows, with
    the model's own responses; see rollout.overflow for one that gets too long."""
    system_prompt: str = ""
    """The system message of every prompt; none if empty."""

    def episode_options(self) -> dict[str, Any]:
        """Return these options as keyword arguments of an environment."""
        return {
            field.name: getattr(self, field.name) for field in fields(EpisodeOptions)
        }
