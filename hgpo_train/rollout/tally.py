"""Counts of a collection so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hgpo_train.rollout.failures import FailureSummary


@dataclass
class Tally:
    """Counts of a collection so far.

    Attributes:
        steps: Number of steps.
        tokens: Number of response tokens in replies whose policy reports them.
        prompt_tokens: Number of prompt tokens in the same replies.
        uncounted: Number of replies whose policy did not report both numbers of tokens.
        trajectories: Number of rollouts that ended, including aborted ones.
        aborted: Number of rollouts that failed.
        won: Number of rollouts that solved their task.
        unknown: Number of rollouts that ended without failure and whose environment does not say whether they did.
        seconds: Seconds since the start.
        reasons: Number of failures by reason.
        failing: The task of each rollout that failed since the last step.
    """

    steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    uncounted: int = 0
    trajectories: int = 0
    aborted: int = 0
    won: int = 0
    unknown: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    failing: list[str] = field(default_factory=list)

    @property
    def failures(self) -> FailureSummary:
        """The numbers of rollouts and of failed ones, with the reasons."""
        return FailureSummary(self.trajectories, self.aborted, self.reasons)

    def describe(self) -> str:
        """Return steps and tokens per second, and how many finished rollouts won, as one line.

        It is no success rate: short rollouts finish first, and those that win are shorter.
        """
        seconds = max(self.seconds, 1e-9)
        parts = [f"{self.steps / seconds:,.0f} steps/s"]
        if self.tokens:
            parts.append(f"{self.tokens / seconds:,.0f} tokens/s")
        if known := self.trajectories - self.aborted - self.unknown:
            parts.append(f"{self.won:,} of {known:,} finished solved")
        if self.aborted:
            parts.append(f"{self.aborted} failed")
        return " · ".join(parts)
