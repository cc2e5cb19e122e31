"""Panels: versioned files that fix everything of an evaluation but the policy, so that its number can be repeated."""

from typing import TYPE_CHECKING

from hgpo_train.lazy_names import lazy_names

if TYPE_CHECKING:
    from hgpo_train.panels.loading import list_panels as list_panels
    from hgpo_train.panels.loading import load_panel as load_panel
    from hgpo_train.panels.panel import Panel as Panel
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
