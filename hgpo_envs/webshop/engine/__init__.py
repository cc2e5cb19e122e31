"""WebShop's rules: pages, goals, reward, played by a native engine."""

from hgpo_envs.webshop.engine.engine import WebShopEngine

__all__ = ["WebShopEngine"]
