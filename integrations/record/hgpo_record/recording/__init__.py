"""`hgpo record`: a gateway before an OpenAI-compatible server that writes the calls of a program as step rows.

run.py        the program, and the order of it all        settings.py   the options
gateway.py    forwards requests and answers               rollouts.py   open rollouts, and their commits
calls.py      reads a request and its answer              branches.py   which call continues which
streams.py    reads an answer that was streamed           report.py     what it says at its end
rewards.py    rewards after the run
"""
