"""HGPO's environments in verifiers: `load_environment` is what its commands and trainers call."""

from hgpo_verifiers.environment import StepEnv, load_environment
from hgpo_verifiers.step_table import write_steps

__all__ = ["StepEnv", "load_environment", "write_steps"]
