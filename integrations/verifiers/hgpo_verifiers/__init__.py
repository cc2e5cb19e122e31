"""HGPO's environments in verifiers 0.4: a taskset, the harness that plays it, and advantages of steps for trainers."""

from hgpo_verifiers.advantages import assign_advantages
from hgpo_verifiers.harness import StepHarness
from hgpo_verifiers.taskset import StepTaskset

__all__ = ["StepHarness", "StepTaskset", "assign_advantages"]
