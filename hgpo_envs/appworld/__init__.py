"""AppWorld: tasks over everyday apps, solved by writing Python. The original engine, in its own interpreter."""
