"""The viewer of runs, `hgpo view`: a local server, or one page that needs none (docs/viewer.md).

In the order of data flow: `sources` (the runs that were named) → `index` (one row per trajectory and per group, and
where their rows are) → `rollouts` (the table and the search), `documents` (a group, the steps of a trajectory),
`estimates` (advantages), `overview`, `notes` (what people write about rollouts) → `app` (the server), or `page` (the
same in one file).

The page itself is built from the folder `viewer/` into `static/`.
"""
