"""WebShop's rules as a native engine: pages, goals and reward."""

from hgpo_envs.webshop.engine.engine import WebShopEngine

__all__ = ["WebShopEngine"]
