"""Evaluation: play every task of a split once per seed, and report results with confidence intervals."""

from hgpo_train.evaluation.comparison import Comparison, compare
from hgpo_train.evaluation.play import evaluate, evaluate_panel
from hgpo_train.evaluation.report import (
    EvaluationReport,
    episode_table,
    evaluation_reports,
)

__all__ = [
    "Comparison",
    "EvaluationReport",
    "compare",
    "episode_table",
    "evaluate",
    "evaluate_panel",
    "evaluation_reports",
]
