"""Comparison of this package's AppWorld engine with AppWorld's own class and HTTP server, on random programs."""
