"""An episode as text for people: task, actions, states and rewards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hgpo_envs.episode import Episode


def render_step(episode: Episode) -> str:
    """Return an episode's last command and state text, for ``render_mode="ansi"``. Empty before the first episode."""
    if not episode.started:
        return ""
    command = f"> {episode.action}\n\n" if episode.steps_taken else ""
    return f"{command}{episode.state.text}\n"


def transcript_step(episode: Episode) -> str:
    """Return the last step of an episode: its command, the state that followed, its reward and how the episode ended.

    Before the first step, this is the task and the first state. Control characters are replaced, because terminals
    interpret them.

    Args:
        episode: A started episode.
    """
    state = episode.state
    if not episode.steps_taken:
        kind = f" ({episode.task.task_type})" if episode.task.task_type else ""
        lines = [f"# {episode.task.id}{kind}", f"# task: {episode.task.instruction}", "", state.text, ""]
    else:
        invalid = "" if episode.action_valid else "   (invalid)"
        ending = "" if not episode.done else f", {_ending(episode)} after {episode.steps_taken} steps"
        lines = [
            f"[{episode.steps_taken}] > {episode.action}{invalid}",
            state.text,
            f"reward {state.reward:g}{ending}",
            "",
        ]
    return "\n".join(map(_printable, lines))


def print_step(episode: Episode) -> None:
    """Print the last step of an episode, for ``render_mode="human"``.

    Characters that standard output cannot encode become question marks.
    """
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(transcript_step(episode).encode(encoding, "replace").decode(encoding) + "\n")
    sys.stdout.flush()


def _ending(episode: Episode) -> str:
    if episode.state.won:
        return "won"
    if not episode.terminated:
        return "stopped by the step limit"
    return "ended" if episode.state.won is None else "ended without success"


def _printable(text: str) -> str:
    return "".join([letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text])
