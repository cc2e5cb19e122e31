"""ALFWorld's rules: games, their state, commands, goals and texts, played by a native engine."""

from hgpo_envs.alfworld.engine.engine import ALFWorldEngine

__all__ = ["ALFWorldEngine"]
