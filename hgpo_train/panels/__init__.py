"""Panels: versioned files that fix everything of an evaluation but the policy, so that its number can be repeated."""

from typing import TYPE_CHECKING

from hgpo_train.lazy_names import lazy_names

if TYPE_CHECKING:
    from hgpo_train.panels.loading import list_panels, load_panel
    from hgpo_train.panels.panel import Panel

__all__ = ["Panel", "list_panels", "load_panel"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hgpo_train.panels.loading": ("list_panels", "load_panel"),
        "hgpo_train.panels.panel": ("Panel",),
    },
)
