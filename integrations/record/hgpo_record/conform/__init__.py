"""Checks of advantage code: what every estimator owes, on tables whose right values are known.

from hgpo_record.conform import conform

for finding in conform(my_function, "verl"):
    print(finding)
"""

from hgpo_record.conform.adapters import ADAPTERS, CallError
from hgpo_record.conform.checks import CHECKS, Finding, conform

__all__ = ["ADAPTERS", "CHECKS", "CallError", "Finding", "conform"]
