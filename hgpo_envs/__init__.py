"""Text environments for LLM agents: ALFWorld and WebShop as native engines that match the originals byte for byte.

Importing this package registers the ids ``HGPO/ALFWorld-v0`` and ``HGPO/WebShop-v0`` with Gymnasium.
"""

from hgpo_envs.registration import register_environments

register_environments()
