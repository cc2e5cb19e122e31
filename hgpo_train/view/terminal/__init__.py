"""The viewer in a terminal, `hgpo view RUN --terminal`: the documents of the browser's viewer, without a browser.

`hierarchy` (the groups of a step, and what differs between histories) and `estimators` (the two that are compared)
need no terminal; `texts` makes a run's texts safe to show; `tree` and `step` are the two screens of `app`.
"""
