"""Scripted players of AppWorld."""
