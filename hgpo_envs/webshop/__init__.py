"""WebShop: a text shopping benchmark with a native engine and a memory-mapped catalogue."""
