"""Benchmarks of research, with the runner and the results of benchmarks/."""
