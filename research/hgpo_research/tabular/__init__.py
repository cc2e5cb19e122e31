"""Learning curves of tabular policies: many seeds in lock-step on compiled tasks, with the package's own estimators.

A task is compiled to a graph of arrays as rollouts visit it (`graphs`). A policy has one logit per task, state text and
choice (`policy`); all seeds play at once (`rollouts`), and their step tables are one table in which the seed is part of
the group's key, so that one call of an estimator gives the advantages of all (`learning`). True values come from the
graph (`values`), and `gain` predicts what an update along an estimator's gradient improves.
"""
