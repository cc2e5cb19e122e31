"""AppWorld: tasks in everyday apps, which an agent solves by writing Python programs."""
