"""ALFWorld's rules as a native engine: games, states, commands, goals and texts."""

from hgpo_envs.alfworld.engine.engine import ALFWorldEngine

__all__ = ["ALFWorldEngine"]
