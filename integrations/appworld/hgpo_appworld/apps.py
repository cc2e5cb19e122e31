"""The apps of AppWorld."""

from __future__ import annotations

from typing import Final

ACCOUNTS: Final = (
    "amazon",
    "file_system",
    "gmail",
    "phone",
    "simple_note",
    "splitwise",
    "spotify",
    "todoist",
    "venmo",
)
"""The apps in which everyone has an account."""
