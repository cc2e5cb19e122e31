"""Environments for trainers in other processes: one process, a session per WebSocket connection, OpenEnv's protocol.

`run` (socket, signals) → `server` (connections, limits) → `access` (token, host, path) and `session` (one environment;
`messages` reads what clients send) over `environments` (what is served). README.md is the user documentation.
"""
