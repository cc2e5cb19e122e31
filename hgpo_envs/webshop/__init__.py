"""WebShop: shopping by instruction in text, played by a native engine over a memory-mapped catalogue."""
