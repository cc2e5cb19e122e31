"""`hgpo record`: a gateway before an OpenAI-compatible server that writes the calls of a program as step rows.

gateway.py    forwards requests and answers                      run.py         the program, and the order of it all
calls.py      reads a request and its answer                     streams.py     reads an answer that was streamed
branches.py   which call continues which                         rollouts.py    open rollouts, and their commits
rewards.py    rewards after the run
"""
