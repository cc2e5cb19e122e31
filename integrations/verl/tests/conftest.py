"""The stand-ins are imported by verl, in an environment of its own."""

collect_ignore = ["verl_cpu_platform.py", "verl_on_cpu.py"]
