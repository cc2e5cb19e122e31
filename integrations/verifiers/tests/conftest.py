"""The advantages are assigned by a program of an environment of its own, in which verifiers is installed."""

collect_ignore = ["verifiers_advantages.py"]
