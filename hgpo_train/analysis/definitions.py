"""What the statistics of a run are called where they are shown, and what they mean: label, meaning, equation.

`hgpo stats`, notebooks, the viewer and docs/statistics.md take them from here. In the equations, n is a group's size,
R a return, A_k an advantage within a group at depth k (the equations are in advantages/estimators/hgpo.py), and K the
deepest level.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Definition(NamedTuple):
    """A statistic's label, its meaning in a sentence, and its equation; empty if that says no more."""

    label: str
    meaning: str
    equation: str = ""

    @property
    def text(self) -> str:
        """The meaning and the equation, as they are shown on hover."""
        return f"{self.meaning} {self.equation}".strip()


DEFINITIONS: Final[dict[str, dict[str, Definition]]] = {
    "summary": {
        "groups": Definition("groups", "Groups of rollouts of one task."),
        "trajectories": Definition(
            "rollouts",
            "Rollouts that were not aborted; all columns but “aborted” are of them.",
        ),
        "aborted": Definition(
            "aborted",
            "Rollouts that ended by a failure, of which the outcome is not known.",
        ),
        "steps": Definition("steps", "Steps of these rollouts."),
        "mean_length": Definition(
            "mean length", "Steps of the average rollout.", "steps / rollouts"
        ),
        "mean_return": Definition(
            "mean return",
            "The sum of a rollout's stored rewards, on average.",
            "mean of Σ_t r_t",
        ),
        "success": Definition(
            "success",
            "Share of the rollouts that won, of those whose outcome is known.",
            "won / (rollouts − unknown)",
        ),
        "success_95_low": Definition(
            "95% from",
            "Lower bound of the 95% interval of success: Wilson's, with tasks as trials.",
        ),
        "success_95_high": Definition("95% to", "Upper bound of this interval."),
        "success_if_aborted_lost": Definition(
            "if aborted lost",
            "Success if rollouts of unknown outcome and aborted ones are counted as lost.",
            "won / (rollouts + aborted)",
        ),
        "success_if_aborted_won": Definition(
            "if aborted won",
            "Success if they are counted as won.",
            "(won + unknown + aborted) / (rollouts + aborted)",
        ),
        "flat_groups": Definition(
            "equal returns",
            "Share of the groups whose rollouts all have the same return, from which GRPO learns nothing.",
        ),
        "valid": Definition(
            "valid form",
            "Share of the responses from which an action could be read. Of actions that are commands or numbers, the "
            "share that could be carried out.",
        ),
        "admissible": Definition(
            "admissible",
            "Share of the actions that the environment could carry out, where known.",
        ),
        "unchanged": Definition(
            "nothing changed",
            "Share of the steps whose state replies to an action that changed nothing: it is the state before, begins "
            "with “Nothing happens”, or follows an action that was not admissible.",
        ),
        "shared_masked": Definition(
            "shared, masked",
            "Steps that would share their state if its numbers were masked.",
        ),
        "largest_pairs": Definition(
            "pairs of one task",
            "Share of the pairs of steps at the same state that one task holds; above 20%, it decides.",
        ),
        "largest_task": Definition("task of most pairs", "This task."),
    },
    "levels": {
        "eligible": Definition(
            "steps with k previous states",
            "Share of all steps with k earlier states.",
            "mean of [t ≥ k]",
        ),
        "shared": Definition(
            "steps that share a context",
            "Share of all steps in a group with another step: same task, same state and same k states before it.",
            "Σ_{n>1} n / steps",
        ),
        "cross": Definition(
            "… with another rollout",
            "Share of all steps in a group with two or more rollouts.",
        ),
        "mean_size": Definition(
            "mean group size", "Steps of the average group.", "Σ n / number of groups"
        ),
        "step_size": Definition(
            "mean group size per step",
            "Size of the group of the average step.",
            "Σ n² / Σ n",
        ),
        "differing": Definition(
            "same state, different history",
            "Context inconsistency: of the pairs of steps at the same state, the share whose last k states differ. "
            "Steps with fewer than k earlier states are compared by their whole histories.",
            "1 − Σ m_k (m_k − 1) / Σ n_0 (n_0 − 1), where m_k counts equal histories of at most k states",
        ),
        "inconsistency": Definition(
            "same state, another group",
            "The same, but steps with fewer than k earlier states are in no group at depth k.",
            "CIR_k = 1 − Σ n_k (n_k − 1) / Σ n_0 (n_0 − 1)",
        ),
        "variance": Definition(
            "variance of returns in a group",
            "Variance of R, the discounted return of rewards × 10, within a group of two or more, on average over "
            "groups.",
            "mean of Σ (R − R̄)² / n",
        ),
        "flat": Definition(
            "groups of equal returns",
            "Share of the groups of two or more in which all returns are equal.",
        ),
        "explained": Definition(
            "variance at a state explained",
            "Share of the variance of returns at the same state that the k states before it explain, over steps with "
            "n_k > 1. It is 0 on average if they explain nothing, and below 0 where rollouts visit a state repeatedly.",
            "1 − Σ q_k / Σ q_0, q_k = (R − R̄_k)² n_k / (n_k − 1)",
        ),
        "weight": Definition(
            "weight in HGPO's sum",
            "The level's weight after levels without advantage are left out, on average over steps.",
            "mean of w_k / Σ_j w_j, w_k = (k + 2)^α",
        ),
        "bias": Definition(
            "mean |A_k − A_K|",
            "Distance from the advantage at the deepest level.",
            "mean of |A_k − A_K|",
        ),
        "sign_disagreement": Definition(
            "signs of A_k and A_K differ",
            "Share of the steps with both advantages in which their signs differ; 0 is a sign of its own.",
            "mean of [sign A_k ≠ sign A_K]",
        ),
        "in_pairs": Definition(
            "… in a group of two",
            "Share of the compared steps in a group of two at depth K, where z-scores are ±1 or 0 for any returns.",
        ),
        "compared": Definition(
            "steps that have both",
            "Number of steps with an advantage at depth k and at depth K.",
        ),
    },
    "intervals": {
        "low": Definition(
            "low",
            "Lower end of the 95% interval over tasks. None below six tasks, or where too few tasks decide.",
        ),
        "high": Definition("high", "Upper end of the 95% interval."),
        "chance": Definition(
            "chance",
            "Mean of the statistic if the returns are permuted among the rollouts that visit the same state.",
        ),
        "tasks": Definition(
            "tasks", "Number of tasks, which are the independent observations."
        ),
    },
    "states": {
        "pairs": Definition(
            "of pairs",
            "The state's share of all pairs of steps at the same state.",
            "n (n − 1) / Σ n (n − 1)",
        ),
        "steps": Definition("of steps", "The state's share of all steps."),
    },
    "lengths": {
        "steps": Definition("steps", "Rollouts by their number of steps."),
        "episodes": Definition(
            "episodes", "Number of rollouts of this length, aborted ones included."
        ),
        "aborted": Definition("aborted", "Those that ended by a failure."),
        "won": Definition("won", "Those that won."),
    },
}
"""The definitions, by the table of `hgpo_train.analysis.statistics.Statistics` and its column."""
