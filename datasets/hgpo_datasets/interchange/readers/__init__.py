"""Readers of the files that other programs leave: one module and one function `read_…(path)` a format.

A reader yields rows of the step table, the steps of a rollout in their order. What is no column goes to `extra`.
`hgpo_datasets.interchange.rollouts` has the list of formats, and does what all formats need.
"""
