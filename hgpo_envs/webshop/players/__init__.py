"""Scripted players of WebShop: `expert` and `explorer`."""
