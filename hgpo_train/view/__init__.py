"""The viewer of runs, `hgpo view`: a local server, or one page that needs none (docs/viewer.md).

In the order of data flow: `sources` (the runs that were named) → `index` (one row per trajectory and per group, and
where their rows are) → `tasks` (lists and search), `documents` (a group, the steps of a
trajectory), `estimates` (advantages of a group), `overview` → `app` (the server), or `page` (the same in one file).

The page itself is built from the folder `viewer/` into `static/`.
"""
