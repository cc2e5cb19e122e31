"""A shop's products, mapped read-only and shared by all processes."""

from hgpo_envs.webshop.catalogue.catalogue import Catalogue

__all__ = ["Catalogue"]
