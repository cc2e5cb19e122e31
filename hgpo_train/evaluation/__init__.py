"""Evaluation: every task of a split exactly once a seed, and intervals of the result."""

from hgpo_train.evaluation.comparison import Comparison, compare
from hgpo_train.evaluation.play import evaluate
from hgpo_train.evaluation.report import EvaluationReport, episode_table, evaluation_reports

__all__ = ["Comparison", "EvaluationReport", "compare", "episode_table", "evaluate", "evaluation_reports"]
