"""The engine: the real `appworld`, run by worker processes in a virtual environment of its own."""
