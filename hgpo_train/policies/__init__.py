"""Policies: who writes the responses."""
