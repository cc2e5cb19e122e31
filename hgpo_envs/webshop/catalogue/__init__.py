"""A shop's products in read-only memory-mapped files, shared by all processes."""

from hgpo_envs.webshop.catalogue.catalogue import Catalogue

__all__ = ["Catalogue"]
