"""Step tables: write, read and verify rollouts stored as Parquet. Requires neither an environment nor torch."""

from hgpo_datasets.branches import roots, with_prefixes
from hgpo_datasets.reader import StepTableWarning, scan_steps
from hgpo_datasets.rows import RowError
from hgpo_datasets.schema import columns
from hgpo_datasets.verification import Problem, VerifyReport, verify
from hgpo_datasets.writer import GroupKey, StepWriter

__all__ = [
    "GroupKey",
    "Problem",
    "RowError",
    "StepTableWarning",
    "StepWriter",
    "VerifyReport",
    "columns",
    "roots",
    "scan_steps",
    "verify",
    "with_prefixes",
]
