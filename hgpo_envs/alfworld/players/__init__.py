"""Scripted players of ALFWorld: `expert` and `explorer`."""
