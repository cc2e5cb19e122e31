"""Text environments for LLM agents: ALFWorld and WebShop, native, instant, the same to the byte as the originals."""
